// The last inputs of the convolution in a sequence's state. Device code.
#pragma once

#include "gpu/launch.h"
#include "op/delta/delta_cuda.h"

namespace ridge {

/// [kernel - 1, channels], of a state.
__device__ inline float* tail_of(const DeviceDelta& d, float* state) {
  return state + d.shape.values() * d.shape.key_dim;
}

/// Input of the convolution at row `at` of a span, below 0: before its first.
__device__ inline float input_at(const DeviceDelta& d, const DeltaSpan& span, const float* tail, int at,
                                 int64_t channel) {
  const int64_t channels = d.shape.channels();
  return at < 0 ? tail[(at + d.shape.kernel - 1) * channels + channel] : d.qkv[(span.first + at) * channels + channel];
}

/// A channel of the tails behind the tokens of a span that leave their states. Nobody else reads the tail before them
/// any more.
__device__ inline void move_tail(const DeviceDelta& d, const DeltaSpan& span, int64_t channel) {
  const StatePath path = span.path(d.states);
  const float* const before = tail_of(d, path.before(0));
  const int n_tail = d.shape.kernel - 1;
  for (int t = path.first_kept(); t < span.n; ++t) {
    float inputs[kMostDeltaTaps - 1];
#pragma unroll
    for (int i = 0; i + 1 < kMostDeltaTaps; ++i)  // all of them are asked for together
      if (i < n_tail) inputs[i] = input_at(d, span, before, t + 1 - n_tail + i, channel);
    float* const tail = tail_of(d, path.behind(t));
#pragma unroll
    for (int i = 0; i + 1 < kMostDeltaTaps; ++i)
      if (i < n_tail) tail[i * d.shape.channels() + channel] = inputs[i];
  }
}

}  // namespace ridge
