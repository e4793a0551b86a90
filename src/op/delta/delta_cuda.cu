// Tokens go through the matrix of a value head one by one. A block has 32 columns of a head, whose values stay in its
// registers from the first token of a sequence to its last, and makes what the rule reads, the convolution of the
// head's columns. A launch later a warp norms and gates what the rule gave.
#include <algorithm>

#include "gpu/tensor.h"
#include "op/delta/chunks_cuda.h"
#include "op/delta/tail_cuda.h"
#include "op/norm_rope/norm_guard_cuda.h"

namespace ridge {
namespace {

constexpr int kConvThreads = 256, kConvRows = 8;
constexpr int kGateThreads = 128;

__device__ float silu(float x) { return x / (1 + expf(-x)); }

/// Of spans with chunks. Blocks: (channels, spans, rows).
__global__ void conv_kernel(const DeviceDelta d) {
  const DeltaSpan span = d.spans[blockIdx.y];
  const int64_t channels = d.shape.channels(), c = int64_t(blockIdx.x) * kConvThreads + threadIdx.x;
  if (span.chunk < 0 || c >= channels) return;
  const int first = int(blockIdx.z) * kConvRows, end = min(span.n, first + kConvRows);
  const TapShape taps = taps_of(d);
  const float* const tail = span.path(d.states).before(0) + taps.offset;
  convolve_rows<kConvRows>(taps, d.conv, tail, first, end, c, inputs_of(d, span, c), 0,
                           [&](int t, float sum) { d.mixed[(span.first + t) * channels + c] = silu(sum); });
}

/// z = silu(z) out / sqrt(mean(out^2) + eps) norm of each head, a warp a row: of spans with chunks, or of those that
/// went token by token, whose tails the last `tail_blocks` blocks move on. Blocks: (rows of heads and then
/// channels, spans).
__global__ void __launch_bounds__(kGateThreads) gate_kernel(const DeviceDelta d, int tail_blocks) {
  constexpr int kValues = kMostDeltaValues / 32;  // of a lane
  gpu::let_next_grid_start();
  const DeltaSpan span = d.spans[blockIdx.y];
  const int lane = int(threadIdx.x) % 32, dim = d.shape.value_dim, first_tail = int(gridDim.x) - tail_blocks;
  const auto each_value = [&](const auto& visit) {
#pragma unroll
    for (int i = 0; i < kValues; ++i)
      if (const int k = 32 * i + lane; k < dim) visit(i, k);
  };
  float weights[kValues];
  each_value([&](int i, int k) { weights[i] = d.norm[k]; });
  gpu::wait_for_previous_grid();
  const bool in_chunks = d.n_chunked > 0 && span.chunk >= 0;
  if (span.n == 0 || in_chunks == (tail_blocks > 0)) return;
  if (int(blockIdx.x) >= first_tail) {
    const int64_t channel = int64_t(int(blockIdx.x) - first_tail) * kGateThreads + threadIdx.x;
    if (channel < d.shape.channels()) move_tail(d, span, channel);
    return;
  }
  const int64_t row = int64_t(blockIdx.x) * (kGateThreads / 32) + threadIdx.x / 32;
  if (row >= int64_t(span.n) * d.shape.n_value_heads) return;
  const int64_t at = (int64_t(span.first) * d.shape.n_value_heads + row) * dim;
  float values[kValues], gates[kValues], squares = 0;
  each_value([&](int i, int k) { values[i] = d.out[at + k], gates[i] = d.z[at + k]; });
  each_value([&](int i, int) { squares = fmaf(values[i], values[i], squares); });
  const float mean = gpu::warp_sum(squares) / float(dim) + d.norm_eps;
  const float factor = guarded_factor(mean, 1.0f / sqrtf(mean));
  each_value([&](int i, int k) { d.z[at + k] = silu(gates[i]) * (values[i] * factor * weights[i]); });
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
};

// A block has 32 columns of a head, so that a few sequences fill the device. A lane has a column, a warp some keys of
// it, whose entries stay in registers. What is read from memory in one place is asked for together, the next token's
// inputs while this one is computed, and the code is short, because a launch finds none of it near. Lengths, what a
// state knows of a key and what it gives to a query are sums that are made side by side: the rule's output is keep S^T
// q + (q k) change, with S from before the token. Outputs go to memory; gate_kernel, one launch later, norms them over
// the head and moves the tail on, which all blocks of a key head read.

constexpr int kPartColumns = 32, kPartWarps = 8;

/// What a token's blocks exchange in shared memory, twice: a token's threads may still read what the next one's have
/// not to overwrite.
template <int kKeys>
struct PartRoom {
  alignas(16) float queries[kKeys];
  alignas(16) float keys[kKeys];
  float values[kPartColumns];
  float known[kPartWarps][kPartColumns], asked[kPartWarps][kPartColumns];
  float keep, beta;
};

/// Blocks: (value heads, parts, spans), kBlocks at a time on a multiprocessor.
template <int kWarpKeys, int kBlocks>
__global__ void __launch_bounds__(32 * kPartWarps, kBlocks) part_kernel(const DeviceDelta d) {
  constexpr int kKeys = kPartWarps * kWarpKeys, kThreads = 32 * kPartWarps;
  constexpr int kChannels = (2 * kKeys + kPartColumns + kThreads - 1) / kThreads;  // of a thread
  __shared__ PartRoom<kKeys> rooms[2];
  gpu::let_next_grid_start();
  const DeltaShape& s = d.shape;
  const DeltaSpan span = d.spans[blockIdx.z];
  if (span.n == 0 || (d.n_chunked > 0 && span.chunk >= 0)) return gpu::wait_for_previous_grid();
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32, head = int(blockIdx.x);
  const int column = int(blockIdx.y) * kPartColumns + lane, first_key = warp * kWarpKeys;
  const bool inside = column < s.value_dim;
  const int64_t key = int64_t(s.key_head(head)) * s.key_dim, value = int64_t(head) * s.value_dim;

  // What the step does not write is read before the wait: the inputs before this step and the state.
  /// Channel i of the block: queries, keys from kKeys on, values from 2 kKeys on; below 0 where there is none.
  const auto channel_of = [&](int i) {
    const int of_value = i - 2 * kKeys + int(blockIdx.y) * kPartColumns;
    if (i >= 2 * kKeys)
      return i < 2 * kKeys + kPartColumns && of_value < s.value_dim ? 2 * s.keys() + value + of_value : -1;
    return i % kKeys < s.key_dim ? i / kKeys * s.keys() + key + i % kKeys : -1;
  };
  float* const before = span.path(d.states).before(0);
  Taps taps[kChannels];
  int64_t channels[kChannels];
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    channels[j] = channel_of(j * kThreads + thread);
    if (channels[j] >= 0) taps[j].load(d, before + taps_of(d).offset, channels[j]);
  }
  float matrix[kWarpKeys];
  const auto each_entry = [&](float* state, const auto& visit) {
    float* at = state + value * s.key_dim + int64_t(first_key) * s.value_dim + column;
    const int n_keys = inside ? s.key_dim - first_key : 0;
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i, at += s.value_dim) visit(matrix[i], i < n_keys ? at : nullptr);
  };
  each_entry(before, [](float& entry, const float* at) { entry = at ? *at : 0; });
  const bool of_keep = warp == kPartWarps - 2, of_beta = warp == kPartWarps - 1;
  const float dt_bias = d.dt_bias[head], decay = d.decay[head];
  const float* const gate_inputs = (of_keep ? d.a : d.b) + head;
  const float query_scale = 1 / sqrtf(float(s.key_dim));
  gpu::wait_for_previous_grid();

  float inputs[kChannels] = {}, gate_input = 0;
  const auto ask_for = [&](int64_t row) {
#pragma unroll
    for (int j = 0; j < kChannels; ++j)
      if (channels[j] >= 0) inputs[j] = d.qkv[row * s.channels() + channels[j]];
    if (of_keep || of_beta) gate_input = gate_inputs[row * s.n_value_heads];
  };
  ask_for(span.first);
#pragma unroll 1
  for (int t = 0; t < span.n; ++t) {
    PartRoom<kKeys>& room = rooms[t % 2];
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const int i = j * kThreads + thread;
      const float x = channels[j] >= 0 ? taps[j].next(inputs[j]) : 0;
      if (i < 2 * kKeys + kPartColumns)
        (i < kKeys ? room.queries + i : i < 2 * kKeys ? room.keys + i - kKeys : room.values + i - 2 * kKeys)[0] = x;
    }
    if (of_keep && lane == 0) {
      const float x = gate_input + dt_bias;
      room.keep = expf(decay * (x > 20 ? x : log1pf(expf(x))));
    }
    if (of_beta && lane == 0) room.beta = 1 / (1 + expf(-gate_input));
    if (t + 1 < span.n) ask_for(span.first + t + 1);
    __syncthreads();

    float known = 0, asked = 0;
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) {
      known = fmaf(matrix[i], room.keys[first_key + i], known);
      asked = fmaf(matrix[i], room.queries[first_key + i], asked);
    }
    room.known[warp][lane] = known, room.asked[warp][lane] = asked;
    float of_query = 0, of_key = 0, of_both = 0;  // squared lengths and the product of both, by every warp
#pragma unroll
    for (int i = 0; i < kKeys / 32; ++i) {
      const float q = room.queries[32 * i + lane], k = room.keys[32 * i + lane];
      of_query = fmaf(q, q, of_query), of_key = fmaf(k, k, of_key), of_both = fmaf(q, k, of_both);
    }
    for (int step = 16; step > 0; step /= 2) {
      of_query += __shfl_xor_sync(gpu::kAllLanes, of_query, step);
      of_key += __shfl_xor_sync(gpu::kAllLanes, of_key, step);
      of_both += __shfl_xor_sync(gpu::kAllLanes, of_both, step);
    }
    const float by_key = guarded_factor(of_key, 1 / sqrtf(of_key + 1e-6f)),
                by_query = guarded_factor(of_query, query_scale / sqrtf(of_query + 1e-6f));
    const float keep = room.keep;
    __syncthreads();
    known = asked = 0;
#pragma unroll
    for (int w = 0; w < kPartWarps; ++w) known += room.known[w][lane], asked += room.asked[w][lane];
    const float change = room.beta * (room.values[lane] - keep * by_key * known), by_change = by_key * change;
    if (warp == 0 && inside)
      d.out[(span.first + t) * s.values() + value + column] =
          fmaf(keep * by_query, asked, by_query * of_both * by_change);
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) matrix[i] = fmaf(room.keys[first_key + i], by_change, keep * matrix[i]);
    // Read again: what finds the places of states would fill registers all the way.
    const StatePath path = d.spans[blockIdx.z].path(d.states);
    if (t < path.first_kept()) continue;
    each_entry(path.behind(t), [](float entry, float* at) {
      if (at) *at = entry;
    });
  }
}

void launch_gates(gpu::StreamHandle stream, const DeviceDelta& d, bool moves_tails) {
  const int64_t rows = gpu::ceil_div(int64_t(d.most) * d.shape.n_value_heads, kGateThreads / 32),
                tails = moves_tails ? gpu::ceil_div(d.shape.channels(), kGateThreads) : 0;
  gpu::launch("delta gate", gate_kernel,
              {{unsigned(rows + tails), unsigned(d.n_spans)}, kGateThreads, 0, stream, d.overlap}, d, int(tails));
}

void launch_parts(gpu::StreamHandle stream, const DeviceDelta& d) {
  const dim3 blocks(unsigned(d.shape.n_value_heads), unsigned(gpu::ceil_div(d.shape.value_dim, kPartColumns)),
                    unsigned(d.n_spans));
  const int warp_keys = int(gpu::ceil_div(d.shape.key_dim, kPartWarps));
  // Fewer registers let a third block of many run; two have more loads under way.
  const bool many = int64_t(blocks.x) * blocks.y * blocks.z > 2 * gpu::multiprocessors();
  const auto kernel = warp_keys <= 4    ? part_kernel<4, 2>
                      : warp_keys <= 8  ? part_kernel<8, 2>
                      : warp_keys <= 16 ? (many ? part_kernel<16, 3> : part_kernel<16, 2>)
                                        : part_kernel<kMostDeltaKeys / kPartWarps, 1>;
  gpu::launch("delta states", kernel, {blocks, 32 * kPartWarps, 0, stream, d.overlap}, d);
  launch_gates(stream, d, true);
}

__global__ void place_kernel(DeltaSpan* spans, int n_spans, const StepRow* rows) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n_spans && spans[i].n > 0) spans[i].n_past = rows[spans[i].row].position;
}

}  // namespace

void device_place_spans(gpu::StreamHandle stream, DeltaSpan* spans, int n_spans, const StepRow* rows) {
  constexpr int kThreads = 128;
  gpu::launch("delta places", place_kernel, {unsigned(gpu::ceil_div(n_spans, kThreads)), kThreads, 0, stream}, spans,
              n_spans, rows);
}

void device_gated_delta(gpu::StreamHandle stream, const DeviceDelta& delta) {
  DeviceDelta d = delta;
  if (!has_delta_chunks(d.shape)) d.n_chunked = 0;
  if (d.n_chunked > 0) {
    const dim3 blocks(unsigned(gpu::ceil_div(d.shape.channels(), kConvThreads)), unsigned(d.n_spans),
                      unsigned(gpu::ceil_div(d.most, kConvRows)));
    gpu::launch("delta convolution", conv_kernel, {blocks, kConvThreads, 0, stream}, d);
    device_delta_chunks(stream, d);
    d.overlap = false;
    launch_gates(stream, d, false);
  }
  if (d.n_chunked == d.n_spans) return;
  launch_parts(stream, d);
}

}  // namespace ridge
