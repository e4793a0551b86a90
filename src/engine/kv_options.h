// From the options of a cache to the configuration of every layer, and back to a report.
#pragma once

#include "model/plan.h"
#include "op/cache/memory.h"
#include "ridge/engine.h"

namespace ridge {

/// The formats' policies with the options over them. Throws usage when that cannot work for the model.
std::vector<KvLayerConfig> layer_configs(const SessionOptions& options, const ModelPlan& plan);

/// Pages of one sequence of n positions, were none given back.
int pages_for(std::span<const KvLayerConfig> layers, int n);
/// Pages for n_seqs sequences of n_ctx positions and steps of n_step tokens in all: sliding layers hold what queries
/// see, and in a step what it brings. 1 of each class at least.
PageNumbers pool_pages(std::span<const KvLayerConfig> layers, int n_ctx, int n_seqs, int n_step);
/// The longest context of one sequence, at most `most`, whose cache takes no more than `bytes`; 0 where none does.
int context_that_fits(std::span<const KvLayerConfig> layers, bool on_device, int most, int n_step, int64_t bytes);
/// Pages that a sequence of any length holds of sliding layers, one token a step, at most; 0 without such layers.
int most_sliding_pages(std::span<const KvLayerConfig> layers);

KvReport kv_report(KvMemory& memory, int n_ctx);

/// Bytes that a decode step reads of a sequence's cache with n positions, of the part that this process has.
int64_t kv_read_bytes(const KvMemory& memory, int n);
/// Computes kv_read_bytes() before a model is loaded, without bytes held beside rows; options.n_ctx >= n.
int64_t kv_row_bytes(const SessionOptions& options, const ModelPlan& plan, int n);

}  // namespace ridge
