// Part of a layer of the gated delta rule on one of several ranks: some key heads, in one piece, and the value heads
// that read them. Their states never leave the rank.
#pragma once

#include <vector>

#include "base/extent.h"
#include "op/delta/shape.h"

namespace ridge {

/// Every list is of the whole layer's numbers; put one behind the other they are the rank's own.
struct DeltaPart {
  DeltaShape shape;              ///< the rank's own
  std::vector<Extent> heads;     ///< value heads
  std::vector<Extent> values;    ///< of these heads: rows of z, columns of the output projection
  std::vector<Extent> channels;  ///< q, k and v: rows of qkv, columns of the convolution
  std::vector<Extent> state;     ///< of the values that a sequence remembers (DeltaShape::state_values())
};

/// `size` divides whole.n_key_heads.
DeltaPart delta_part(const DeltaShape& whole, int rank, int size);

}  // namespace ridge
