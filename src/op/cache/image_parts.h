// Images of a cache that several ranks hold together: cut into the ranks' parts, and joined from them. Where a rank's
// part lies says model/slice.h.
#pragma once

#include <span>
#include <vector>

#include "base/extent.h"
#include "op/cache/memory.h"

namespace ridge {

/// Part of one side of the whole model that a rank holds. In an image the centre, the scale and the rows of a KV head
/// are each in one piece, in order of heads, so a rank has consecutive heads. A state's values are cut as the side's
/// mixer says: a rank's state is the runs `state` of the whole one, one after the other.
struct SidePart {
  Extent heads;  ///< kv heads; none where the side has none
  std::vector<Extent> state;
};

/// Layouts of all layers of the whole model, K and V; their order of tiles does not matter to images.
using WholeLayouts = std::span<const KvLayouts>;

/// A rank's side of an image: what memory that holds the part alone would have read.
SideImage cut_side(const KvLayout& whole, int n, const SideImage& image, const SidePart& part);
/// The whole side of n positions of what ranks have; parts[i] is of images[i]. Heads and values that several ranks have
/// are taken from the first of them; together they must have all.
SideImage join_sides(const KvLayout& whole, int n, std::span<const SideImage> images, std::span<const SidePart> parts);

/// All sides: `parts` is [2 n_layers], K and V of each layer.
SequenceImage cut_image(WholeLayouts whole, const SequenceImage& image, std::span<const SidePart> parts);

}  // namespace ridge
