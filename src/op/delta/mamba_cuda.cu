#include "op/delta/mamba_cuda.h"

#include "op/delta/chunk_products.h"
#include "op/delta/mamba_chunks_cuda.h"
#include "op/delta/tail_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kConvThreads = 128, kConvRows = 16;
constexpr int kPart = 32;  ///< of the state_dim rows of a matrix, those that a thread holds of its column
constexpr int kMostThreads = 1024;
constexpr int kNormThreads = 256;

/// Threads of a block: a column of the matrix in so many parts.
RIDGE_HD int parts_of(const MambaShape& s) { return (s.state_dim + kPart - 1) / kPart; }

__device__ float silu(float x) { return x / (1 + expf(-x)); }
__device__ float softplus_of(float x) { return x > 20 ? x : log1pf(expf(x)); }

__device__ bool has_chunks(const DeviceMamba& m, const DeltaSpan& span) { return m.n_chunked > 0 && span.chunk >= 0; }

/// A thread has a channel. B and C of spans with chunks become quads. The blocks of a span's first rows move the tail
/// on: no others read it. Blocks: (channels, spans, rows).
__global__ void mamba_conv_kernel(const DeviceMamba m) {
  const DeltaSpan span = m.spans[blockIdx.y];
  const int64_t channels = m.shape.channels(), at = int64_t(blockIdx.x) * kConvThreads + threadIdx.x;
  if (span.n == 0) return;
  const int64_t c = min(at, channels - 1);  // a warp stays whole
  const bool quads = has_chunks(m, span);
  const TapShape taps{m.shape.kernel, channels, m.shape.inner() * m.shape.state_dim};
  const auto input = [&](int row) { return m.in[(span.first + row) * m.shape.columns() + m.shape.inner() + c]; };
  const StatePath path = span.path(m.states);
  const int first = int(blockIdx.z) * kConvRows, end = min(span.n, first + kConvRows);
  const float* const tail = path.before(0) + taps.offset;
  convolve_rows<kConvRows>(taps, m.conv, tail, first, end, c, input, m.conv_bias[c], [&](int t, float sum) {
    float value = silu(sum);
    if (quads) {
      const float other = __shfl_xor_sync(gpu::kAllLanes, value, 1);
      if (c >= m.shape.inner()) {
        uint32_t hi, lo;
        chunks::split(at % 2 ? other : value, at % 2 ? value : other, hi, lo);
        value = __uint_as_float(at % 2 ? lo : hi);
      }
    }
    if (at < channels) m.mixed[(span.first + t) * channels + at] = value;
  });
  if (blockIdx.z == 0 && at < channels) move_taps(taps, path, at, input);
}

/// A thread has kPart rows of a column of a head's matrix, from the first token of a sequence to its last. Blocks:
/// (heads, spans).
__global__ void __launch_bounds__(kMostThreads) mamba_scan_kernel(const DeviceMamba m) {
  __shared__ float parts[kMostThreads];
  const MambaShape& s = m.shape;
  const DeltaSpan span = m.spans[blockIdx.y];
  if (has_chunks(m, m.spans[blockIdx.y])) return;
  if (span.n == 0) return;
  const int head = int(blockIdx.x), column = int(threadIdx.x) % s.head_dim, part = int(threadIdx.x) / s.head_dim;
  const int first_row = part * kPart, n_parts = parts_of(s);
  const int64_t channels = s.channels(), at = (int64_t(head) * s.state_dim + first_row) * s.head_dim + column;
  const int64_t b_at = s.inner() + int64_t(head / (s.n_heads / s.n_groups)) * s.state_dim + first_row,
                c_at = b_at + int64_t(s.n_groups) * s.state_dim;
  const StatePath path = span.path(m.states);
  float matrix[kPart];
  const auto each_row = [&](const auto& visit) {
#pragma unroll
    for (int j = 0; j < kPart; ++j)
      if (first_row + j < s.state_dim) visit(j);
  };
  {
    const float* const before = path.before(0) + at;
    each_row([&](int j) { matrix[j] = before[int64_t(j) * s.head_dim]; });
  }
  const float decay = m.decay[head], dt_bias = m.dt_bias[head], d = m.d[head];
  for (int t = 0; t < span.n; ++t) {
    const float* const row = m.mixed + (span.first + t) * channels;
    const float x = row[int64_t(head) * s.head_dim + column];
    const float dt = softplus_of(m.in[(span.first + t) * s.columns() + s.inner() + channels + head] + dt_bias);
    const float keep = expf(decay * dt);
    float sum = 0;
    each_row([&](int j) {
      matrix[j] = fmaf(keep, matrix[j], dt * row[b_at + j] * x);
      sum = fmaf(row[c_at + j], matrix[j], sum);
    });
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (part == 0) {
      float all = d * x;
      for (int p = 0; p < n_parts; ++p) all += parts[p * s.head_dim + column];
      m.out[((span.first + t) * s.n_heads + head) * s.head_dim + column] = all;
    }
    __syncthreads();
    if (t < path.first_kept()) continue;
    float* const behind = path.behind(t) + at;
    each_row([&](int j) { behind[int64_t(j) * s.head_dim] = matrix[j]; });
  }
}

/// Blocks: (groups, rows).
__global__ void mamba_norm_kernel(const DeviceMamba m) {
  const int64_t inner = m.shape.inner(), n = inner / m.shape.n_groups, first = int64_t(blockIdx.x) * n;
  const float* const z = m.in + int64_t(blockIdx.y) * m.shape.columns() + first;
  float* const out = m.out + int64_t(blockIdx.y) * inner + first;
  double squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += kNormThreads) {
    const float value = silu(z[i]) * out[i];
    out[i] = value;
    squares += double(value) * value;
  }
  const double factor = 1.0 / sqrt(gpu::block_sum<kNormThreads>(squares) / double(n) + m.norm_eps);
  for (int64_t i = threadIdx.x; i < n; i += kNormThreads) out[i] = float(out[i] * factor * m.norm[first + i]);
}

}  // namespace

bool can_run_mamba(const MambaShape& shape) {
  return shape.kernel <= kMostDeltaTaps && shape.head_dim * parts_of(shape) <= kMostThreads;
}

void device_mamba(gpu::StreamHandle stream, const DeviceMamba& mamba) {
  DeviceMamba m = mamba;
  const MambaShape& s = m.shape;
  if (!has_mamba_chunks(s)) m.n_chunked = 0;
  if (s.kernel < 2 || !can_run_mamba(s)) throw Error(ErrorKind::failure, "Mamba2 of heads that no block holds");
  const auto spans = unsigned(m.n_spans);
  const dim3 conv(unsigned(gpu::ceil_div(s.channels(), kConvThreads)), spans,
                  unsigned(gpu::ceil_div(m.most, kConvRows)));
  gpu::launch("mamba_conv", mamba_conv_kernel, {conv, kConvThreads, 0, stream}, m);
  if (m.n_chunked > 0) device_mamba_chunks(stream, m);
  if (m.n_chunked < m.n_spans)
    gpu::launch("mamba_scan", mamba_scan_kernel,
                {dim3(unsigned(s.n_heads), spans), unsigned(s.head_dim * parts_of(s)), 0, stream}, m);
  gpu::launch("mamba_norm", mamba_norm_kernel,
              {dim3(unsigned(s.n_groups), unsigned(m.n_rows)), kNormThreads, 0, stream}, m);
}

}  // namespace ridge
