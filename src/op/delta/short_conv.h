// The gated short convolution of LFM2: a mixer whose state is the newest few tokens.
#pragma once

#include <span>

#include "base/view.h"
#include "op/cache/states.h"
#include "op/cache/tiles.h"
#include "op/cpu.h"

namespace ridge {

/// One layer of a step. For every token in turn and every channel: u = b x; out = c times the sum over the newest
/// `kernel` values of u, each with its weight; u joins the state, and the oldest value leaves it.
struct ShortConv {
  int kernel = 0;
  const float* weights = nullptr;  ///< [kernel, channels], the last row on the token itself
  std::span<const KvSpan> spans;   ///< first_row, n_rows, n_past and slot count here
  LayerStates states;              ///< [kernel - 1, channels] each, the oldest first; read and written
  View2<const float> bcx;          ///< [n, 3 channels]: all b, all c, all x
  View2<float> out;                ///< [n, channels]
};
void short_conv(CpuContext& context, const ShortConv& conv);

}  // namespace ridge
