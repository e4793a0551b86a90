// State files of a model that ranks hold together: gathered on the first rank, which writes the file that a process
// alone would have written; read there, and cut for each rank. A file does not say how many ranks wrote it.
#pragma once

#include <filesystem>

#include "engine/kv_state.h"
#include "model/slice.h"
#include "rank/ranks.h"

namespace ridge {

/// How long ranks wait for what stands behind a file, or behind a whole cache: disks and memories differ in speed.
double file_seconds(const Ranks& ranks);

/// What ranks have of the caches: `own` are this rank's layers.
struct RankCaches {
  RankCaches(Ranks& of, const ModelSlice& slice, std::span<const KvLayerConfig> own);

  /// The same of some layers only, in this order: of images that SequencePool::save() makes of them.
  RankCaches of_layers(std::span<const int> layers) const;

  Ranks& ranks;
  std::vector<std::vector<SidePart>> parts;  ///< by rank
  std::vector<KvLayouts> whole;
};

// Every rank makes these calls with its own part; what fails on the first rank fails on all of them, with its message.

/// The whole sequence of the parts: on the first rank only.
std::optional<SequenceImage> gather_image(const RankCaches& caches, SequenceImage own);
/// This rank's part of an image that the first rank has.
SequenceImage scatter_image(const RankCaches& caches, const SequenceImage* whole);

Status save_kv_state(const RankCaches& caches, SequenceImage own, uint64_t model_hash,
                     const std::filesystem::path& path);
/// The file is read on the first rank alone.
Result<SequenceImage> read_kv_state(const RankCaches& caches, int n_ctx, uint64_t model_hash, const std::string& path);

}  // namespace ridge
