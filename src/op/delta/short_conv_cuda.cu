#include "op/delta/short_conv_cuda.h"

#include "op/delta/tail_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kThreads = 128, kRows = 16;

/// A thread has a channel. The blocks of a span's first rows move the state on: no others read it. Blocks: (channels,
/// spans, rows).
__global__ void short_conv_kernel(const DeviceShortConv d) {
  const DeltaSpan span = d.spans[blockIdx.y];
  const int64_t c = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (span.n == 0 || c >= d.channels) return;
  const TapShape taps{d.kernel, d.channels, 0};
  const auto input = [&](int row) {
    const float* const bcx = d.bcx + (span.first + row) * 3 * d.channels + c;
    return bcx[0] * bcx[2 * d.channels];
  };
  const StatePath path = span.path(d.states);
  const int first = int(blockIdx.z) * kRows, end = min(span.n, first + kRows);
  convolve_rows<kRows>(taps, d.weights, path.before(0), first, end, c, input, 0, [&](int t, float sum) {
    const float gate = d.bcx[((span.first + t) * 3 + 1) * d.channels + c];
    d.out[(span.first + t) * d.channels + c] = gate * sum;
  });
  if (blockIdx.z == 0) move_taps(taps, path, c, input);
}

}  // namespace

void device_short_conv(gpu::StreamHandle stream, const DeviceShortConv& d) {
  if (d.kernel < 2 || d.kernel > kMostDeltaTaps) throw Error(ErrorKind::failure, "a convolution of too many tokens");
  const dim3 blocks(unsigned(gpu::ceil_div(d.channels, kThreads)), unsigned(d.n_spans),
                    unsigned(gpu::ceil_div(d.most, kRows)));
  gpu::launch("short_conv", short_conv_kernel, {blocks, kThreads, 0, stream}, d);
}

}  // namespace ridge
