// The last inputs of a causal convolution in a sequence's state. Device code.
#pragma once

#include "gpu/launch.h"
#include "op/delta/delta_cuda.h"

namespace ridge {

/// A convolution of each channel over the `kernel` newest tokens, the last weight on the token itself. In a state its
/// inputs before the next token are a matrix [kernel - 1, channels], the oldest first, `offset` floats behind the
/// start.
struct TapShape {
  int kernel = 0;
  int64_t channels = 0, offset = 0;
};

/// A channel's input at row `at` of a span, below 0: before its first, of which `tail` has kernel - 1. input(row): of a
/// row of the step.
template <class Input>
__device__ inline float tap_at(const TapShape& s, const float* tail, int at, int64_t channel, const Input& input) {
  return at < 0 ? tail[(at + s.kernel - 1) * s.channels + channel] : input(at);
}

/// The convolution of a channel at rows first .. end of a span, kRows at most, each added to `start`: visit(row, sum).
/// All inputs are asked for before the first sum.
template <int kRows, class Input, class Visit>
__device__ inline void convolve_rows(const TapShape& s, const float* weights, const float* tail, int first, int end,
                                     int64_t channel, const Input& input, float start, const Visit& visit) {
  constexpr int kBefore = kMostDeltaTaps - 1;
  float inputs[kBefore + kRows], of_taps[kMostDeltaTaps];
#pragma unroll
  for (int k = 0; k < kMostDeltaTaps; ++k)
    of_taps[k] = k > kBefore - s.kernel ? weights[(k - kMostDeltaTaps + s.kernel) * s.channels + channel] : 0;
#pragma unroll
  for (int i = 0; i < kBefore + kRows; ++i)
    inputs[i] =
        i > kBefore - s.kernel && first + i - kBefore < end ? tap_at(s, tail, first + i - kBefore, channel, input) : 0;
#pragma unroll
  for (int t = 0; t < kRows; ++t) {
    if (first + t >= end) break;
    float sum = start;
#pragma unroll
    for (int k = 0; k < kMostDeltaTaps; ++k)
      if (k > kBefore - s.kernel) sum = fmaf(of_taps[k], inputs[t + k], sum);
    visit(first + t, sum);
  }
}

/// A channel of the tails behind the n tokens of a span that leave their states. Nobody else reads the tail before them
/// any more.
template <class Input>
__device__ inline void move_taps(const TapShape& s, const StatePath& path, int64_t channel, const Input& input) {
  constexpr int kAtOnce = 4, kMostTail = kMostDeltaTaps - 1;  // tokens whose inputs are asked for together
  static_assert(kMostTail <= kAtOnce + 1, "later tokens find no input in the tail before, which may be overwritten");
  const float* const before = path.before(0) + s.offset;
  const int n_tail = s.kernel - 1;
  for (int first = path.first_kept(); first < path.n_rows; first += kAtOnce) {
    const int n = min(kAtOnce, path.n_rows - first);
    float inputs[kMostTail + kAtOnce - 1];
#pragma unroll
    for (int i = 0; i < kMostTail + kAtOnce - 1; ++i)
      if (i < n_tail + n - 1) inputs[i] = tap_at(s, before, first + 1 - n_tail + i, channel, input);
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      if (t >= n) break;
      float* const tail = path.behind(first + t) + s.offset;
#pragma unroll
      for (int i = 0; i < kMostTail; ++i)
        if (i < n_tail) tail[i * s.channels + channel] = inputs[t + i];
    }
  }
}

/// Of the gated delta rule.
__device__ inline TapShape taps_of(const DeviceDelta& d) {
  return {d.shape.kernel, d.shape.channels(), d.shape.values() * d.shape.key_dim};
}
/// Rows of a span, as inputs of a channel of the gated delta rule.
__device__ inline auto inputs_of(const DeviceDelta& d, const DeltaSpan& span, int64_t channel) {
  return [&d, &span, channel](int row) { return d.qkv[(span.first + row) * d.shape.channels() + channel]; };
}
__device__ inline void move_tail(const DeviceDelta& d, const DeltaSpan& span, int64_t channel) {
  move_taps(taps_of(d), span.path(d.states), channel, inputs_of(d, span, channel));
}

}  // namespace ridge
