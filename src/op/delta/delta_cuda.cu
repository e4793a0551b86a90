// Tokens go through the matrix of a value head one by one. A block has a head: a few lanes share a column of the
// matrix, whose values stay in their registers from the first token of a sequence to its last. The same block makes
// what the rule reads, the convolution of the head's columns, and norms and gates what the rule gives.
#include <algorithm>

#include "gpu/tensor.h"
#include "op/delta/chunks_cuda.h"
#include "op/delta/tail_cuda.h"

namespace ridge {
namespace {

constexpr int kParts = 4;  ///< lanes of a column; lane i has every fourth group of four keys, from the i-th on
constexpr int kGroupKeys = 4 * kParts;
constexpr int kConvThreads = 256, kConvRows = 8;
constexpr int kGateThreads = 128;

__device__ float silu(float x) { return x / (1 + expf(-x)); }

/// A channel behind the convolution and silu, at row t of a span.
__device__ float mixed_at(const DeviceDelta& d, const DeltaSpan& span, const float* tail, int t, int64_t channel) {
  float sum = 0;
  for (int k = 0; k < d.shape.kernel; ++k)
    sum = fmaf(d.conv[k * d.shape.channels() + channel], input_at(d, span, tail, t + k - d.shape.kernel + 1, channel),
               sum);
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

/// A channel of the convolution in a thread's registers: its weights and the inputs before the next token.
struct Taps {
  float weights[kMostDeltaTaps], inputs[kMostDeltaTaps - 1];

  /// Weights, and the inputs in front of the span. The last weight is on the token itself.
  __device__ void load(const DeviceDelta& d, const float* tail, int64_t channel) {
    const int64_t channels = d.shape.channels();
#pragma unroll
    for (int k = 0; k < kMostDeltaTaps; ++k) {
      const int row = k - kMostDeltaTaps + d.shape.kernel;
      weights[k] = row >= 0 ? d.conv[row * channels + channel] : 0;
      if (k + 1 < kMostDeltaTaps) inputs[k] = row >= 0 ? tail[row * channels + channel] : 0;
    }
  }
  /// The convolution and silu at a token of this input. Taps that are not there add nothing.
  __device__ float next(float input) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k + 1 < kMostDeltaTaps; ++k) {
      sum = fmaf(weights[k], inputs[k], sum);
      inputs[k] = k + 2 < kMostDeltaTaps ? inputs[k + 1] : input;
    }
    return silu(fmaf(weights[kMostDeltaTaps - 1], input, sum));
  }
  /// The inputs before the next span.
  __device__ void store(const DeviceDelta& d, float* tail, int64_t channel) const {
#pragma unroll
    for (int k = 0; k + 1 < kMostDeltaTaps; ++k)
      if (const int row = k - kMostDeltaTaps + d.shape.kernel; row >= 0)
        tail[row * d.shape.channels() + channel] = inputs[k];
  }
};

/// A warp: factor / |x|
__device__ float by_length(const float* x, int n, float factor) {
  double sum = 0;
  for (int i = int(threadIdx.x) % 32; i < n; i += 32) sum += double(x[i]) * x[i];
  return float(factor / sqrt(gpu::warp_sum(sum) + 1e-6));
}

/// Blocks: (value heads, spans), of at least kParts threads a column, and half a thread a channel of the head: its
/// queries, keys and values. Most of the time is latency: what is read from memory in one place is asked for together,
/// the next token's inputs while this one is computed, and the code is short, because a launch finds none of it near.
template <int kGroups, int kMostThreads>
__global__ void __launch_bounds__(kMostThreads) state_kernel(const DeviceDelta d) {
  constexpr int kKeys = kGroups * kGroupKeys;
  __shared__ __align__(16) float keys[kKeys];
  __shared__ __align__(16) float queries[kKeys];
  __shared__ float values[kMostDeltaValues], outs[kMostDeltaValues], gates[2][kMostDeltaValues];
  __shared__ float query_factor, key_factor, keep, beta;
  __shared__ bool is_last;
  gpu::let_next_grid_start();
  const DeltaShape& s = d.shape;
  const DeltaSpan span = d.spans[blockIdx.y];
  if (span.n == 0 || (d.n_chunked > 0 && span.chunk >= 0)) return gpu::wait_for_previous_grid();
  const int thread = int(threadIdx.x), n_threads = int(blockDim.x), warp = thread / 32, lane = thread % 32;
  const int head = int(blockIdx.x), part = thread % kParts, column = thread / kParts;
  const bool inside = column < s.value_dim;
  const int64_t key = int64_t(s.key_head(head)) * s.key_dim, value = int64_t(head) * s.value_dim;
  float* const tail = tail_of(d, span);

  // What the step does not write is read before the wait: the inputs before this step and the state.
  const int n_channels = 2 * s.key_dim + s.value_dim;
  const auto each_channel = [&](const auto& visit) {  // (0 or 1, number in the block, channel)
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if (const int i = thread + j * n_threads; i < n_channels)
        visit(j, i,
              i < s.key_dim       ? key + i
              : i < 2 * s.key_dim ? s.keys() + key + i - s.key_dim
                                  : 2 * s.keys() + value + i - 2 * s.key_dim);
  };
  Taps taps[2];
  each_channel([&](int j, int, int64_t channel) { taps[j].load(d, tail, channel); });
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
  for (int i = s.key_dim + thread; i < kKeys; i += n_threads) keys[i] = queries[i] = 0;
  const bool of_keep = warp == 2;  // warp 3 makes beta
  const float dt_bias = d.dt_bias[head], decay = d.decay[head];
  const float* const gate_inputs = (of_keep ? d.a : d.b) + head;
  gpu::wait_for_previous_grid();

  float inputs[2] = {}, z = 0, gate_input = 0;
  const auto ask_for = [&](int64_t row) {
    each_channel([&](int j, int, int64_t channel) { inputs[j] = d.qkv[row * s.channels() + channel]; });
    if (thread < s.value_dim) z = d.z[row * s.values() + value + thread];
    gate_input = gate_inputs[row * s.n_value_heads];
  };
  ask_for(span.first);
#pragma unroll 1
  for (int t = 0; t < span.n; ++t) {
    const int64_t row = span.first + t;
    float* const gate = gates[t % 2];
    each_channel([&](int j, int i, int64_t) {
      const float x = taps[j].next(inputs[j]);
      (i < s.key_dim ? queries + i : i < 2 * s.key_dim ? keys + i - s.key_dim : values + i - 2 * s.key_dim)[0] = x;
    });
    if (thread < s.value_dim) gate[thread] = silu(z);
    if ((warp == 2 || warp == 3) && lane == 0) {  // in double, as the reference
      const double x = double(gate_input) + (of_keep ? dt_bias : 0);
      const double e = exp(of_keep ? x : -x);
      if (of_keep) keep = float(exp(decay * (x > 20 ? x : log1p(e))));
      else beta = float(1 / (1 + e));
    }
    if (t + 1 < span.n) ask_for(row + 1);
    __syncthreads();
    if (warp < 2) {
      const bool of_query = warp == 0;
      const float factor =
          by_length(of_query ? queries : keys, s.key_dim, of_query ? 1 / sqrtf(float(s.key_dim)) : 1.0f);
      if (lane == 0) (of_query ? query_factor : key_factor) = factor;
    }
    // The last block of a key head moves the inputs of its queries and keys on: no other one reads them any more.
    if (t == 0 && thread == n_threads - 1) {
      uint32_t& counter = d.counters[blockIdx.y * unsigned(s.n_key_heads) + unsigned(s.key_head(head))];
      __threadfence();
      is_last = atomicAdd(&counter, 1u) == unsigned(s.n_value_heads / s.n_key_heads) - 1;
      if (is_last) counter = 0;
    }
    __syncthreads();
    const auto* const k = reinterpret_cast<const float4*>(keys) + part;
    const auto* const q = reinterpret_cast<const float4*>(queries) + part;
    const float by_key = key_factor, by_query = query_factor, kept = keep;
    float known[4] = {}, sums[4] = {};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const float4 of = k[g * kParts];
      known[0] = fmaf(matrix[g][0], of.x * by_key, known[0]);
      known[1] = fmaf(matrix[g][1], of.y * by_key, known[1]);
      known[2] = fmaf(matrix[g][2], of.z * by_key, known[2]);
      known[3] = fmaf(matrix[g][3], of.w * by_key, known[3]);
    }
    const float change = beta * ((inside ? values[column] : 0) - kept * column_sum(known));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const float4 of = k[g * kParts], by = q[g * kParts];
      const float changes[4] = {of.x * by_key * change, of.y * by_key * change, of.z * by_key * change,
                                of.w * by_key * change};
      const float query[4] = {by.x * by_query, by.y * by_query, by.z * by_query, by.w * by_query};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        matrix[g][e] = fmaf(kept, matrix[g][e], changes[e]);
        sums[e] = fmaf(matrix[g][e], query[e], sums[e]);
      }
    }
    const float sum = column_sum(sums);
    if (part == 0 && inside) outs[column] = sum;
    __syncthreads();
    if (warp == 0) normed_gate(s.value_dim, outs, gate, d.norm, d.norm_eps, d.z + row * s.values() + value);
  }
  each_entry([](float entry, float* at) {
    if (at) *at = entry;
  });
  each_channel([&](int j, int i, int64_t channel) {
    if (is_last || i >= 2 * s.key_dim) taps[j].store(d, tail, channel);
  });
}

template <int kGroups>
void launch_state(gpu::StreamHandle stream, const DeviceDelta& d) {
  const int needed = std::max({kParts * d.shape.value_dim, d.shape.key_dim + (d.shape.value_dim + 1) / 2, 4 * 32});
  const int n_threads = int(gpu::ceil_div(needed, 32)) * 32;
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
