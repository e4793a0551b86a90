// Experts that stay in host memory while a device runs the rest of a model: which layers they are of, and what they
// take.
#pragma once

#include "model/plan.h"
#include "model/weights.h"

namespace ridge {

/// What the host shall keep: where both of the first two are given, what either asks for.
struct ExpertPlace {
  int n_cpu_moe = 0;  ///< experts of the first so many layers
  double device_gib =
      -1;  ///< experts of as many of the first layers as leave at most so many GiB for the device; below
           ///< 0: no limit
  double cache_gib =
      0;  ///< of the layers on the host, so many GiB of single experts are on the device as well: as many
          ///< of each layer

  bool any() const { return n_cpu_moe > 0 || device_gib >= 0 || cache_gib > 0; }
};
/// Sets ExpertsPlan::on_host and n_cached of every layer. Bytes are those of the file. Throws usage where no layer has
/// experts, and for a cache without layers on the host or with room for less than an expert of each.
void place_experts(const ExpertPlace& place, const Weights& weights, ModelPlan& plan);

/// What experts on the host take.
struct HostExpertBytes {
  int64_t memory = 0;  ///< of all, as this processor's kernels read them
  int64_t step = 0;    ///< of those that a step of one token reads, as in the file
  int n_layers = 0;
  int n_experts = 0, n_cached = 0;  ///< of the first of the layers
};
HostExpertBytes host_expert_bytes(const ModelPlan& plan, const Weights& weights, Isa isa);

/// Packs the matrices of experts on the host, and of no others, as pack_weights() does.
void pack_host_experts(CpuContext& context, const ModelPlan& plan, Weights& weights);

}  // namespace ridge
