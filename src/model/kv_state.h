// KV state files: a cache on disk, refused unless it fits the model and the session exactly. Layout:
// docs/formats/kv-state.md.
#pragma once

#include <filesystem>

#include "model/kv_cache.h"
#include "model/weights.h"

namespace ridge {

/// Tells models apart: xxh64 of the hyper-parameters, the vectors, and of every matrix its shape, its format and the
/// first 4 KiB of its rows.
uint64_t model_hash(const Config& config, Weights& weights);

/// Writes positions [0, n_past) of `cache`; the file appears under its name only when it is complete.
Status save_kv_state(const KvCache& cache, uint64_t model_hash, const std::filesystem::path& path);

/// Takes over a state file's bytes. Everything is checked before anything is changed: on failure, which names the
/// field, the cache is as it was. `name` is the file in messages.
Status restore_kv_state(KvCache& cache, uint64_t model_hash, std::span<const std::byte> file, std::string_view name);

}  // namespace ridge
