// How large the buffers of the CPU backend become: cpu_backend.cpp and the ops it calls, followed without running them.
#pragma once

#include "engine/backend.h"
#include "model/slice.h"
#include "op/cache/layout.h"

namespace ridge {

/// A step: so many sequences, each with so many new tokens behind n_past.
struct StepShape {
  int n_seqs = 1, n_tokens = 1, n_past = 0;
  int n_logits = 1;  ///< rows of logits
};
struct PlannedBuffers : StepBuffers {
  int64_t logits = 0;  ///< Outputs::bytes()
};

/// After these steps, in this order, from empty buffers and caches that were just opened. Matrices need formats and shapes only; of several ranks they are those of `slice`. Exact but for the tokens
/// that each expert gets, which are taken to be twice an even share, and lists of a few bytes a token.
PlannedBuffers plan_step_buffers(const ModelPlan& plan, const Weights& weights, std::span<const KvLayerConfig> layers,
                                 Isa isa, int n_threads, std::span<const StepShape> steps,
                                 const ModelSlice* slice = nullptr);

}  // namespace ridge
