// Experts in host memory that a prompt brings to a device: many tokens share what the copies cost.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "gpu/graph.h"
#include "model/plan.h"
#include "model/weights.h"

namespace ridge {

struct ExpertMatmuls;  // engine/cuda_model.h

/// An expert that comes to a place among those of a device's matmuls.
struct ExpertMove {
  int32_t expert = 0, place = 0;
};

class ExpertStream {
 public:
  /// All three must outlive it. No one else uses the context meanwhile.
  ExpertStream(CpuContext& context, const ModelPlan& plan, const Weights& weights)
      : context_(context), plan_(plan), weights_(weights) {}

  /// Queues on `stream` what brings experts of a layer to their places. Threads copy an expert's blocks to page-locked
  /// memory while the device fetches the one before. `source`: [to.source_bytes()] on the device. Returns when the last
  /// copy is queued.
  void bring(gpu::StreamHandle stream, int layer, std::span<const ExpertMove> moves, ExpertMatmuls& to,
             std::byte* source);

 private:
  struct Half {
    gpu::PinnedBuffer memory;
    gpu::Event fetched{false};
  };

  CpuContext& context_;
  const ModelPlan& plan_;
  const Weights& weights_;
  std::array<Half, 2> halves_;
};

}  // namespace ridge
