#include "op/delta/short_conv.h"

#include <algorithm>

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
  constexpr int64_t kChannels = 512;  // that a thread takes at once
  const int64_t blocks = (channels + kChannels - 1) / kChannels;
  context.pool.for_each(n_spans * blocks, [&](int64_t i, int) {
    const KvSpan& span = conv.spans[size_t(i / blocks)];
    const int64_t first = i % blocks * kChannels, last = std::min(channels, first + kChannels);
    float* const tail = conv.states + span.slot * n_tail * channels;
    for (int64_t t = span.first_row; t < span.first_row + span.n_rows; ++t) {
      const float *const b = &conv.bcx(t, 0), *const c = b + channels, *const x = c + channels;
      for (int64_t j = first; j < last; ++j) {
        const float u = b[j] * x[j];
        float sum = conv.weights[n_tail * channels + j] * u;
        for (int64_t k = 0; k < n_tail; ++k) sum += conv.weights[k * channels + j] * tail[k * channels + j];
        for (int64_t k = 0; k + 1 < n_tail; ++k) tail[k * channels + j] = tail[(k + 1) * channels + j];
        tail[(n_tail - 1) * channels + j] = u;
        conv.out(t, j) = c[j] * sum;
      }
    }
  });
}

}  // namespace ridge
