// From the options of a cache to the configuration of every layer, and back to a report.
#pragma once

#include "model/plan.h"
#include "op/cache/memory.h"
#include "ridge/engine.h"

namespace ridge {

/// The formats' policies with the options over them. Throws usage when that cannot work for the model.
std::vector<KvLayerConfig> layer_configs(const SessionOptions& options, const ModelPlan& plan);

/// Pages of one sequence of n positions.
int pages_for(std::span<const KvLayerConfig> layers, int n);

KvReport kv_report(KvMemory& memory, int n_ctx);

/// Bytes that a decode step reads of a sequence's cache with n positions.
int64_t kv_read_bytes(const KvMemory& memory, int n);

}  // namespace ridge
