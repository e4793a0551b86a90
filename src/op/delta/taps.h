// Shared code of mixers with a state: the states of a forward pass, the causal convolution of each channel, and
// softplus.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "op/cache/states.h"
#include "op/cache/tiles.h"

namespace ridge {

/// Channels that a thread takes through a convolution at once.
inline constexpr int64_t kTapChannels = 512;

/// A causal convolution, channel by channel.
struct Taps {
  const float* weights = nullptr;  ///< [kernel, channels], the last row on the token itself
  int kernel = 0;
  int64_t channels = 0;

  int64_t blocks() const { return (channels + kTapChannels - 1) / kTapChannels; }
  /// sums[i] += what a token's convolution gives for channel first + i, of n channels. x [n]: their inputs. tail
  /// [kernel - 1, channels]: the inputs of the tokens before, the oldest first. `next` gets those of the token behind,
  /// x among them; it may be the tail itself.
  void add(int64_t first, int64_t n, const float* x, const float* tail, float* next, float* sums) const {
    const int n_tail = kernel - 1;
    for (int k = 0; k <= n_tail; ++k) {
      const float *const from = k < n_tail ? tail + k * channels + first : x, *const w = weights + k * channels + first;
      for (int64_t i = 0; i < n; ++i) sums[i] += w[i] * from[i];
    }
    for (int k = 0; k < n_tail; ++k) {
      const float* const from = k + 1 < n_tail ? tail + (k + 1) * channels + first : x;
      std::copy(from, from + n, next + k * channels + first);
    }
  }
};

inline StatePath path_of(const LayerStates& states, const KvSpan& span) {
  return {states, span.slot, span.n_past, span.n_rows};
}

inline double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

}  // namespace ridge
