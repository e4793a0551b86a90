// Which model a cached state belongs to.
#pragma once

#include "model/config.h"
#include "model/weights.h"

namespace ridge {

/// Hashes (XXH3) of all that decides what a model computes: every field of its configuration but the name, every
/// vector, and of every matrix its shape, format, scale and contents. Contents of models of up to kWholeBytes are
/// hashed in whole; of larger ones a block of 4 KiB in each 256 KiB, at places that a hash chooses, with the first and
/// the last block.
struct ModelIdentity {
  static constexpr int64_t kWholeBytes = int64_t(4) << 30;

  uint64_t of_short = 0;     ///< of sequences within the original context of LongRoPE
  uint64_t of_long = 0;      ///< beyond; as `of_short` in models without
  int original_context = 0;  ///< where they part

  uint64_t of(int n_ctx) const { return n_ctx > original_context ? of_long : of_short; }
};

/// Reads the matrices once. The whole model, before ranks cut it. `whole_bytes` is for tests.
ModelIdentity identify(const Config& config, const Weights& weights, int64_t whole_bytes = ModelIdentity::kWholeBytes);

}  // namespace ridge
