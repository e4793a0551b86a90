// DeviceSteps of a CUDA device. For builds with RIDGE_CUDA only.
#pragma once

#include "engine/run_ahead.h"
#include "gpu/graph.h"
#include "gpu/token_ring.h"

namespace ridge {

/// Replays of one recorded step that ends in the ring (DeviceSampler::sample or TokenRing::publish).
class GraphSteps final : public DeviceSteps {
 public:
  GraphSteps(const gpu::Stream& stream, const gpu::Graph& graph, const gpu::TokenRing& ring)
      : stream_(stream), graph_(graph), ring_(ring) {}
  void launch(int64_t) override { graph_.launch(stream_); }
  bool read(int64_t step, std::span<int32_t> tokens) override { return ring_.read(step, tokens); }
  bool idle() override { return stream_.idle(); }
  void finish() override { stream_.synchronize(); }

 private:
  const gpu::Stream& stream_;
  const gpu::Graph& graph_;
  const gpu::TokenRing& ring_;
};

}  // namespace ridge
