// Images of sequences of a model that ranks hold together: the first rank has them whole, each rank its own heads.
#pragma once

#include "model/slice.h"
#include "op/cache/layout.h"
#include "rank/ranks.h"

namespace ridge {

/// How long ranks wait for what stands behind a file, a whole cache or a computation of the first rank alone. No other
/// wait in a pass is longer.
double file_seconds(const Ranks& ranks);

/// What ranks have of the caches: `own` are this rank's layers.
struct RankCaches {
  RankCaches(Ranks& of, const ModelSlice& slice, std::span<const KvLayerConfig> own);

  Ranks& ranks;
  std::vector<std::vector<SidePart>> parts;  ///< by rank
  std::vector<KvLayouts> whole;
};

/// This rank's part of an image that the first rank has, null on the others. Every rank calls it.
SequenceImage scatter_image(const RankCaches& caches, const SequenceImage* whole);

}  // namespace ridge
