// Tokens go through the matrix of a value head one by one. A block has some of its columns, which do not meet: a few
// lanes share a column, and its values stay in their registers from the first token of a sequence to its last.
#include "op/delta/chunks_cuda.h"
#include "op/delta/tail_cuda.h"

namespace ridge {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kParts = 4;  ///< lanes of a column; lane i has every fourth group of four keys, from the i-th on
constexpr int kColumns = kThreads / kParts;
constexpr int kGroupKeys = 4 * kParts;
constexpr int kBatch = 16;  ///< tokens whose keys and queries are in shared memory at a time
constexpr int kConvThreads = 256, kConvRows = 8;

__device__ float silu(float x) { return x / (1 + expf(-x)); }

/// Blocks: (channels, spans, rows).
__global__ void conv_kernel(const DeviceDelta d) {
  const DeltaSpan span = d.spans[blockIdx.y];
  const int64_t channels = d.shape.channels(), c = int64_t(blockIdx.x) * kConvThreads + threadIdx.x;
  if (c >= channels) return;
  const float* const tail = tail_of(d, span);
  const int first = int(blockIdx.z) * kConvRows, end = min(span.n, first + kConvRows);
  for (int t = first; t < end; ++t) {
    float sum = 0;
    for (int k = 0; k < d.shape.kernel; ++k)
      sum = fmaf(d.conv[k * channels + c], input_at(d, span, tail, t + k - d.shape.kernel + 1, c), sum);
    d.mixed[(span.first + t) * channels + c] = silu(sum);
  }
}

/// A warp: x / |x| times `factor`, and zeros up to kKeys.
template <int kKeys>
__device__ void normalise(const float* x, int n, float factor, float* to) {
  const int lane = int(threadIdx.x) % 32;
  double sum = 0;
  for (int i = lane; i < n; i += 32) sum += double(x[i]) * x[i];
  const float by = float(factor / sqrt(gpu::warp_sum(sum) + 1e-6));
  for (int i = lane; i < kKeys; i += 32) to[i] = i < n ? x[i] * by : 0;
}

/// Sum over the lanes of a column.
__device__ float column_sum(const float (&parts)[4]) {
  float sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
  for (int step = 1; step < kParts; step *= 2) sum += __shfl_xor_sync(gpu::kAllLanes, sum, step);
  return sum;
}

/// Blocks: (value heads, columns, spans).
template <int kGroups>
__global__ void __launch_bounds__(kThreads) state_kernel(const DeviceDelta d) {
  constexpr int kKeys = kGroups * kGroupKeys;
  __shared__ __align__(16) float keys[kBatch][kKeys];
  __shared__ __align__(16) float queries[kBatch][kKeys];
  __shared__ float values[kBatch][kColumns], keeps[kBatch], betas[kBatch];
  const DeltaShape& s = d.shape;
  const DeltaSpan span = d.spans[blockIdx.z];
  if (span.n == 0 || (d.n_chunked > 0 && span.chunk >= 0)) return;
  const int thread = int(threadIdx.x), head = int(blockIdx.x), first_column = int(blockIdx.y) * kColumns;
  const int part = thread % kParts, own = thread / kParts, column = first_column + own;
  const bool inside = column < s.value_dim;
  const int64_t channels = s.channels(), key = int64_t(s.key_head(head)) * s.key_dim,
                value = int64_t(head) * s.value_dim;
  float* const state = d.states + span.slot * s.state_values() + value * s.key_dim + column;
  float matrix[kGroups][4];
  const auto each_entry = [&](const auto& visit) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = g * kGroupKeys + part * 4 + e;
        visit(matrix[g][e], inside && i < s.key_dim ? state + int64_t(i) * s.value_dim : nullptr);
      }
  };
  each_entry([](float& entry, const float* at) { entry = at ? *at : 0; });

  for (int from = 0; from < span.n; from += kBatch) {
    const int n = min(kBatch, span.n - from);
    const int64_t row = span.first + from;
    __syncthreads();  // the batch before has been read
    for (int t = thread / 32; t < n; t += kWarps) {
      const float* const q = d.mixed + (row + t) * channels + key;
      normalise<kKeys>(q, s.key_dim, 1 / sqrtf(float(s.key_dim)), queries[t]);
      normalise<kKeys>(q + s.keys(), s.key_dim, 1, keys[t]);
    }
    for (int i = thread; i < n * kColumns; i += kThreads) {
      const int t = i / kColumns, c = i % kColumns;
      values[t][c] =
          first_column + c < s.value_dim ? d.mixed[(row + t) * channels + 2 * s.keys() + value + first_column + c] : 0;
    }
    if (thread < n) {  // in double, as the reference
      const int64_t at = (row + thread) * s.n_value_heads + head;
      const double x = double(d.a[at]) + d.dt_bias[head];
      keeps[thread] = float(exp(d.decay[head] * (x > 20 ? x : log1p(exp(x)))));
      betas[thread] = float(1 / (1 + exp(-double(d.b[at]))));
    }
    __syncthreads();
    for (int t = 0; t < n; ++t) {
      const auto* const k = reinterpret_cast<const float4*>(keys[t]) + part;
      const auto* const q = reinterpret_cast<const float4*>(queries[t]) + part;
      const float keep = keeps[t];
      float known[4] = {}, sums[4] = {};
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float4 of = k[g * kParts];
        known[0] = fmaf(matrix[g][0], of.x, known[0]);
        known[1] = fmaf(matrix[g][1], of.y, known[1]);
        known[2] = fmaf(matrix[g][2], of.z, known[2]);
        known[3] = fmaf(matrix[g][3], of.w, known[3]);
      }
      const float change = betas[t] * (values[t][own] - keep * column_sum(known));
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float4 of = k[g * kParts], by = q[g * kParts];
        const float changes[4] = {of.x * change, of.y * change, of.z * change, of.w * change};
        const float query[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          matrix[g][e] = fmaf(keep, matrix[g][e], changes[e]);
          sums[e] = fmaf(matrix[g][e], query[e], sums[e]);
        }
      }
      const float sum = column_sum(sums);
      if (part == 0 && inside) d.out[(row + t) * s.values() + value + column] = sum;
    }
  }
  each_entry([](float entry, float* at) {
    if (at) *at = entry;
  });
  move_tail(d, span);
}

/// A warp a row.
__global__ void normed_gate_kernel(int64_t n_rows, int64_t n, const float* x, const float* weight, float eps,
                                   float* z) {
  const int lane = int(threadIdx.x) % 32;
  const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= n_rows) return;
  x += row * n;
  z += row * n;
  double sum = 0;
  for (int64_t i = lane; i < n; i += 32) sum += double(x[i]) * x[i];
  const double factor = 1.0 / sqrt(gpu::warp_sum(sum) / double(n) + eps);
  for (int64_t i = lane; i < n; i += 32) z[i] = silu(z[i]) * float(x[i] * factor * weight[i]);
}

template <int kGroups>
void launch_state(gpu::StreamHandle stream, const DeviceDelta& d) {
  const dim3 blocks(unsigned(d.shape.n_value_heads), unsigned(gpu::ceil_div(d.shape.value_dim, kColumns)),
                    unsigned(d.n_spans));
  gpu::launch("delta states", state_kernel<kGroups>, {blocks, kThreads, 0, stream}, d);
}

}  // namespace

void device_gated_delta(gpu::StreamHandle stream, const DeviceDelta& delta) {
  DeviceDelta d = delta;
  if (!has_delta_chunks(d.shape)) d.n_chunked = 0;
  const dim3 blocks(unsigned(gpu::ceil_div(d.shape.channels(), kConvThreads)), unsigned(d.n_spans),
                    unsigned(gpu::ceil_div(d.most, kConvRows)));
  gpu::launch("delta convolution", conv_kernel, {blocks, kConvThreads, 0, stream}, d);
  if (d.n_chunked > 0) device_delta_chunks(stream, d);
  if (d.n_chunked == d.n_spans) return;
  if (d.shape.key_dim <= 16) launch_state<1>(stream, d);
  else if (d.shape.key_dim <= 32) launch_state<2>(stream, d);
  else if (d.shape.key_dim <= 64) launch_state<4>(stream, d);
  else if (d.shape.key_dim <= 128) launch_state<8>(stream, d);
  else launch_state<kMostDeltaKeys / kGroupKeys>(stream, d);
}

void device_normed_gate(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, const float* weight,
                        float eps, float* z) {
  gpu::launch("normed gate", normed_gate_kernel, {unsigned(gpu::ceil_div(n_rows, kWarps)), kThreads, 0, stream}, n_rows,
              n, x, weight, eps, z);
}

}  // namespace ridge
