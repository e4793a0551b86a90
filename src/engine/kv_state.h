// KV state files: a sequence on disk, refused unless it fits the model and the pool exactly. Layout:
// docs/formats/kv-state.md.
#pragma once

#include <filesystem>

#include "engine/pool.h"

namespace ridge {

/// Writes the image of a sequence of caches with these layouts; the file appears under its name only when it is
/// complete.
Status save_kv_state(std::span<const KvLayouts> layouts, const SequenceImage& image, uint64_t model_hash,
                     const std::filesystem::path& path);

/// The sequence of a state file, checked against the layouts of the caches it shall go to: everything is checked, and a
/// failure names the first field that differs. `name` is the file in messages; n_ctx the most positions it may hold.
Result<SequenceImage> read_kv_state(std::span<const KvLayouts> layouts, int n_ctx, uint64_t model_hash,
                                    std::span<const std::byte> file, std::string_view name);
/// Reads a state file likewise, and checks it against the pool.
Result<SequenceImage> read_kv_state(const SequencePool& pool, int n_ctx, uint64_t model_hash,
                                    std::span<const std::byte> file, std::string_view name);

}  // namespace ridge
