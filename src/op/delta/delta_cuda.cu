// Tokens go through the matrix of a value head one by one. A block has a head: a few lanes share a column of the matrix,
// whose values stay in their registers from the first token of a sequence to its last. The same block makes what the rule
// reads, the convolution of the head's columns, and norms and gates what the rule gives.
#include "gpu/tensor.h"
#include "op/delta/chunks_cuda.h"
#include "op/delta/tail_cuda.h"

namespace ridge {
namespace {

constexpr int kParts = 4;  ///< lanes of a column; lane i has every fourth group of four keys, from the i-th on
constexpr int kGroupKeys = 4 * kParts;
constexpr int kBatch = 8;  ///< tokens whose keys and queries are in shared memory at a time
constexpr int kConvThreads = 256, kConvRows = 8;
constexpr int kGateThreads = 128;

__device__ float silu(float x) { return x / (1 + expf(-x)); }

/// A channel behind the convolution and silu, at row t of a span.
__device__ float mixed_at(const DeviceDelta& d, const DeltaSpan& span, const float* tail, int t, int64_t channel) {
  float sum = 0;
  for (int k = 0; k < d.shape.kernel; ++k)
    sum = fmaf(d.conv[k * d.shape.channels() + channel],
               input_at(d, span, tail, t + k - d.shape.kernel + 1, channel), sum);
  return silu(sum);
}

/// Of spans with chunks. Blocks: (channels, spans, rows).
__global__ void conv_kernel(const DeviceDelta d) {
  const DeltaSpan span = d.spans[blockIdx.y];
  const int64_t channels = d.shape.channels(), c = int64_t(blockIdx.x) * kConvThreads + threadIdx.x;
  if (span.chunk < 0 || c >= channels) return;
  const int first = int(blockIdx.z) * kConvRows, end = min(span.n, first + kConvRows);
  for (int t = first; t < end; ++t)
    d.mixed[(span.first + t) * channels + c] = mixed_at(d, span, tail_of(d, span), t, c);
}

/// A warp: x / |x| times `factor` in its place, and zeros up to kKeys.
template <int kKeys>
__device__ void normalise(float* x, int n, float factor) {
  const int lane = int(threadIdx.x) % 32;
  double sum = 0;
  for (int i = lane; i < n; i += 32) sum += double(x[i]) * x[i];
  const float by = float(factor / sqrt(gpu::warp_sum(sum) + 1e-6));
  for (int i = lane; i < kKeys; i += 32) x[i] = i < n ? x[i] * by : 0;
}

/// A warp: z[i] = gate[i] x[i] / sqrt(mean(x^2) + eps) weight[i]
__device__ void normed_gate(int n, const float* x, const float* gate, const float* weight, float eps, float* z) {
  const int lane = int(threadIdx.x) % 32;
  double sum = 0;
  for (int i = lane; i < n; i += 32) sum += double(x[i]) * x[i];
  const double factor = 1.0 / sqrt(gpu::warp_sum(sum) / double(n) + eps);
  for (int i = lane; i < n; i += 32) z[i] = gate[i] * float(x[i] * factor * weight[i]);
}

/// Of spans with chunks, a warp a row of a head. Blocks: (rows of heads, spans).
__global__ void __launch_bounds__(kGateThreads) gate_kernel(const DeviceDelta d) {
  const DeltaSpan span = d.spans[blockIdx.y];
  const int dim = d.shape.value_dim;
  const int64_t row = int64_t(blockIdx.x) * (kGateThreads / 32) + threadIdx.x / 32;
  if (span.chunk < 0 || row >= int64_t(span.n) * d.shape.n_value_heads) return;
  const int64_t at = (int64_t(span.first) * d.shape.n_value_heads + row) * dim;
  for (int i = int(threadIdx.x) % 32; i < dim; i += 32) d.z[at + i] = silu(d.z[at + i]);
  normed_gate(dim, d.out + at, d.z + at, d.norm, d.norm_eps, d.z + at);
}

/// Sum over the lanes of a column.
__device__ float column_sum(const float (&parts)[4]) {
  float sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
  for (int step = 1; step < kParts; step *= 2) sum += __shfl_xor_sync(gpu::kAllLanes, sum, step);
  return sum;
}

/// Blocks: (value heads, spans), of at least kParts threads a column.
template <int kGroups, int kMostThreads>
__global__ void __launch_bounds__(kMostThreads) state_kernel(const DeviceDelta d) {
  constexpr int kKeys = kGroups * kGroupKeys;
  __shared__ __align__(16) float keys[kBatch][kKeys];
  __shared__ __align__(16) float queries[kBatch][kKeys];
  __shared__ float values[kBatch][kMostThreads / kParts], gates[kBatch][kMostThreads / kParts];
  __shared__ float keeps[kBatch], betas[kBatch];
  __shared__ bool is_last;
  gpu::let_next_grid_start();
  const DeltaShape& s = d.shape;
  const DeltaSpan span = d.spans[blockIdx.y];
  if (span.n == 0 || (d.n_chunked > 0 && span.chunk >= 0)) return gpu::wait_for_previous_grid();
  const int thread = int(threadIdx.x), n_threads = int(blockDim.x), warp = thread / 32, n_warps = n_threads / 32;
  const int head = int(blockIdx.x), part = thread % kParts, column = thread / kParts;
  const bool inside = column < s.value_dim;
  const int64_t channels = s.channels(), key = int64_t(s.key_head(head)) * s.key_dim,
                value = int64_t(head) * s.value_dim;
  const float* const tail = tail_of(d, span);

  // The head's channels: its queries, keys and values. What the step does not write is asked for before the wait: the
  // state, the inputs before this step and the weights of the convolution.
  const int n_channels = 2 * s.key_dim + s.value_dim;
  const auto channel_of = [&](int i) {
    return i < s.key_dim ? key + i : i < 2 * s.key_dim ? s.keys() + key + i - s.key_dim
                                                       : 2 * s.keys() + value + i - 2 * s.key_dim;
  };
  for (int i = 8 * thread; i < n_channels; i += 8 * n_threads)
    for (int k = 0; k < s.kernel; ++k) {
      gpu::prefetch(d.conv + k * channels + channel_of(i));
      if (k + 1 < s.kernel) gpu::prefetch(tail + k * channels + channel_of(i));
    }
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
  gpu::wait_for_previous_grid();

  bool arrived = false;
  for (int from = 0; from < span.n; from += kBatch) {
    const int n = min(kBatch, span.n - from);
    const int64_t row = span.first + from;
    __syncthreads();  // the batch before has been read
    for (int i = thread; i < n * n_channels; i += n_threads) {
      const int t = i / n_channels, c = i % n_channels;
      const float x = mixed_at(d, span, tail, from + t, channel_of(c));
      (c < s.key_dim ? queries[t][c] : c < 2 * s.key_dim ? keys[t][c - s.key_dim] : values[t][c - 2 * s.key_dim]) = x;
    }
    for (int i = thread; i < n * s.value_dim; i += n_threads) {
      const int t = i / s.value_dim, c = i % s.value_dim;
      gates[t][c] = silu(d.z[(row + t) * s.values() + value + c]);
    }
    if (n_threads - 1 - thread < n) {  // in double, as the reference
      const int t = n_threads - 1 - thread;
      const int64_t at = (row + t) * s.n_value_heads + head;
      const double x = double(d.a[at]) + d.dt_bias[head];
      keeps[t] = float(exp(d.decay[head] * (x > 20 ? x : log1p(exp(x)))));
      betas[t] = float(1 / (1 + exp(-double(d.b[at]))));
    }
    __syncthreads();
    // The last block of a key head moves the inputs of its queries and keys on: no other one reads them any more.
    if (!arrived && (from + n >= s.kernel - 1 || from + n == span.n)) {
      arrived = true;
      if (thread == 0) {
        uint32_t& counter = d.counters[blockIdx.y * unsigned(s.n_key_heads) + unsigned(s.key_head(head))];
        __threadfence();
        is_last = atomicAdd(&counter, 1u) == unsigned(s.n_value_heads / s.n_key_heads) - 1;
        if (is_last) counter = 0;
      }
    }
    for (int i = warp; i < 2 * n; i += n_warps) {
      if (i % 2 == 0) normalise<kKeys>(queries[i / 2], s.key_dim, 1 / sqrtf(float(s.key_dim)));
      else normalise<kKeys>(keys[i / 2], s.key_dim, 1);
    }
    __syncthreads();
    for (int t = 0; t < n; ++t) {
      const auto* const k = reinterpret_cast<const float4*>(keys[t]) + part;
      const auto* const q = reinterpret_cast<const float4*>(queries[t]) + part;
      const float keep = keeps[t], x = inside ? values[t][column] : 0;
      float known[4] = {}, sums[4] = {};
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float4 of = k[g * kParts];
        known[0] = fmaf(matrix[g][0], of.x, known[0]);
        known[1] = fmaf(matrix[g][1], of.y, known[1]);
        known[2] = fmaf(matrix[g][2], of.z, known[2]);
        known[3] = fmaf(matrix[g][3], of.w, known[3]);
      }
      const float change = betas[t] * (x - keep * column_sum(known));
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
      const float sum = column_sum(sums);  // the lanes of the column have read its value
      if (part == 0 && inside) values[t][column] = sum;
    }
    __syncthreads();
    for (int t = warp; t < n; t += n_warps)
      normed_gate(s.value_dim, values[t], gates[t], d.norm, d.norm_eps, d.z + (row + t) * s.values() + value);
  }
  each_entry([](float entry, float* at) {
    if (at) *at = entry;
  });
  for (int i = thread + (is_last ? 0 : 2 * s.key_dim); i < n_channels; i += n_threads) move_tail(d, span, channel_of(i));
}

template <int kGroups>
void launch_state(gpu::StreamHandle stream, const DeviceDelta& d) {
  const int n_threads = int(gpu::ceil_div(kParts * d.shape.value_dim, 32)) * 32;
  const dim3 blocks(unsigned(d.shape.n_value_heads), unsigned(d.n_spans));
  const auto kernel = n_threads <= 512 ? state_kernel<kGroups, 512> : state_kernel<kGroups, kParts * kMostDeltaValues>;
  gpu::launch("delta states", kernel, {blocks, unsigned(n_threads), 0, stream, d.overlap}, d);
}

}  // namespace

void device_gated_delta(gpu::StreamHandle stream, const DeviceDelta& delta) {
  DeviceDelta d = delta;
  if (!has_delta_chunks(d.shape)) d.n_chunked = 0;
  if (d.n_chunked > 0) {
    const dim3 blocks(unsigned(gpu::ceil_div(d.shape.channels(), kConvThreads)), unsigned(d.n_spans),
                      unsigned(gpu::ceil_div(d.most, kConvRows)));
    gpu::launch("delta convolution", conv_kernel, {blocks, kConvThreads, 0, stream}, d);
    device_delta_chunks(stream, d);
    d.overlap = false;
    const auto rows = unsigned(gpu::ceil_div(int64_t(d.most) * d.shape.n_value_heads, kGateThreads / 32));
    gpu::launch("delta gate", gate_kernel, {{rows, unsigned(d.n_spans)}, kGateThreads, 0, stream}, d);
  }
  if (d.n_chunked == d.n_spans) return;
  if (d.shape.key_dim <= 16) launch_state<1>(stream, d);
  else if (d.shape.key_dim <= 32) launch_state<2>(stream, d);
  else if (d.shape.key_dim <= 64) launch_state<4>(stream, d);
  else if (d.shape.key_dim <= 128) launch_state<8>(stream, d);
  else launch_state<kMostDeltaKeys / kGroupKeys>(stream, d);
}

}  // namespace ridge
