#include "op/delta/short_conv.h"

#include <algorithm>

#include "op/delta/taps.h"
#include "op/trace.h"

namespace ridge {

void short_conv(CpuContext& context, const ShortConv& conv) {
  const int64_t channels = conv.out.cols, n = conv.out.rows, n_tail = conv.kernel - 1, n_spans = ssize(conv.spans);
  RIDGE_CHECK(conv.kernel > 1 && conv.bcx.cols == 3 * channels && conv.bcx.rows == n, "[{}, {}] for {} channels",
              conv.bcx.rows, conv.bcx.cols, channels);
  const int64_t state_bytes = 4 * n_spans * n_tail * channels;
  const TracedOp traced(
      context, "short_conv", {},
      {12 * n * channels + state_bytes, 4 * n * channels + state_bytes, n * channels * (2 * conv.kernel + 2)});
  const Taps taps{conv.weights, conv.kernel, channels};
  context.pool.for_each(n_spans * taps.blocks(), [&](int64_t i, int) {
    const KvSpan& span = conv.spans[size_t(i / taps.blocks())];
    const int64_t first = i % taps.blocks() * kTapChannels, n_here = std::min(kTapChannels, channels - first);
    const StatePath path = path_of(conv.states, span);
    float u[kTapChannels];
    for (int t = 0; t < span.n_rows; ++t) {
      const float *const b = &conv.bcx(span.first_row + t, first), *const c = b + channels, *const x = c + channels;
      float* const out = &conv.out(span.first_row + t, first);
      for (int64_t j = 0; j < n_here; ++j) u[j] = b[j] * x[j];
      std::fill_n(out, n_here, 0.0f);
      taps.add(first, n_here, u, path.before(t), path.behind(t), out);
      for (int64_t j = 0; j < n_here; ++j) out[j] *= c[j];
    }
  });
}

}  // namespace ridge
