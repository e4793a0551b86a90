// Buffers of a model's weights on a device, and buffers that its steps grow: computed by the formulas of
// cuda_runner_cuda.cpp, without running it.
#pragma once

#include <span>
#include <string>

#include "engine/cpu_workspace.h"
#include "gpu/memory_use.h"

namespace ridge {

struct DeviceBuffers {
  gpu::Allocations weights;
  int64_t packing = 0;           ///< beside the weights while they are loaded
  gpu::Allocations activations;  ///< with lists of the steps, rings of prompts and partial results of attention
  gpu::Allocations scratch;      ///< of matmuls
  gpu::Allocations logits;       ///< Outputs
  gpu::Allocations sampling;     ///< of steps that sample by themselves
  int64_t n_graph_nodes = 0;     ///< of recorded steps: an upper bound
};
/// Results that steps give beside logits.
struct DeviceWishes {
  bool samples = false;       ///< the last of them samples by itself: a token a sequence
  bool keeps_hidden = false;  ///< steps of prompts leave hidden states
};

/// After these steps, in this order, on a device that no other model's steps share buffers with. Matrices need formats
/// and shapes only; Weights::join as loaded. Steps of more than kMostStepTokens tokens are as large as that. Throws
/// Error: no_device without CUDA or a device, usage for kinds and formats that devices lack.
DeviceBuffers plan_device_buffers(const ModelPlan& plan, const Weights& weights, std::span<const KvLayerConfig> layers,
                                  std::span<const std::string> kernels, std::span<const StepShape> steps,
                                  const DeviceWishes& wishes);
inline constexpr int kMostStepTokens = 1 << 15;

/// Device memory of a pool's caches: what DeviceKvMemory allocates.
gpu::Allocations plan_device_cache(std::span<const KvLayerConfig> layers, PageNumbers n_pages, SlotNumbers slots);

}  // namespace ridge
