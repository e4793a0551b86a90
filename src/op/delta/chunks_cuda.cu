#include "op/delta/chunks_cuda.h"

#include "op/delta/chunk_products.h"
#include "op/delta/tail_cuda.h"

namespace ridge {
namespace {

using namespace chunks;

constexpr int kMostKeys = 128;  ///< a state of more does not fit into the registers of its warps

// --- What chunks are, before states are known ---

/// Of a chunk and a value head.
struct Chunk {
  uint4 solve[kTokens * kTokens / 4];   ///< T in quads; quads behind the diagonal group are not set
  uint4 scores[kTokens * kTokens / 4];  ///< P
  float keeps[kTokens];                 ///< c_t
  float rests[kTokens];                 ///< c_C / c_t
  float betas[kTokens];
};
static_assert(sizeof(Chunk) == 4 * kDeltaChunkFloats);

__device__ Chunk& chunk_of(const DeviceDelta& d, const DeltaSpan& span, int i, int head) {
  const int64_t at = (int64_t(span.chunk) + i) * d.shape.n_value_heads + head;
  return *reinterpret_cast<Chunk*>(d.chunks + at * kDeltaChunkFloats);
}

__device__ const uint4* quads_at(const DeviceDelta& d, int64_t row, int64_t channel) {
  return reinterpret_cast<const uint4*>(d.mixed + row * d.shape.channels() + channel);
}

/// Queries and keys to their lengths, as quads in their place. A warp a head's vector; blocks: (vectors, spans).
__global__ void __launch_bounds__(kThreads) length_kernel(const DeviceDelta d) {
  const DeltaSpan span = d.spans[blockIdx.y];
  const DeltaShape& s = d.shape;
  const int lane = int(threadIdx.x) % 32, n_vectors = 2 * s.n_key_heads;
  const int64_t vector = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32, row = vector / n_vectors;
  if (span.chunk < 0 || row >= span.n) return;
  const int i = int(vector % n_vectors);
  float* const x = d.mixed + (span.first + row) * s.channels() + int64_t(i) * s.key_dim;
  double sum = 0;
  for (int e = lane; e < s.key_dim; e += 32) sum += double(x[e]) * x[e];
  const float scale = i < s.n_key_heads ? 1 / sqrtf(float(s.key_dim)) : 1;
  const float by = float(scale / sqrt(gpu::warp_sum(sum) + 1e-6));
  for (int q = lane; q < s.key_dim / 4; q += 32) {
    const float4 of = reinterpret_cast<const float4*>(x)[q];
    reinterpret_cast<uint4*>(x)[q] = quad_of({of.x * by, of.y * by, of.z * by, of.w * by});
  }
}

/// Blocks: (value heads, chunks of the longest span, spans).
__global__ void __launch_bounds__(kThreads) chunk_kernel(const DeviceDelta d) {
  __shared__ __align__(16) float triangle[kTokens][kTokens + 4], inverse[kTokens][kTokens + 4];
  __shared__ double gates[kTokens], logs[kTokens];
  __shared__ float betas[kTokens];
  const DeltaShape& s = d.shape;
  const DeltaSpan span = d.spans[blockIdx.z];
  const int from = int(blockIdx.y) * kTokens, n = min(kTokens, span.n - from);
  if (span.chunk < 0 || n <= 0) return;
  const int thread = int(threadIdx.x), warp = thread / 32, r = thread % 32 / 4, c = thread % 4, head = int(blockIdx.x);
  const int64_t first = span.first + from, key = int64_t(s.key_head(head)) * s.key_dim;
  Chunk& chunk = chunk_of(d, span, int(blockIdx.y), head);

  if (thread < kTokens) {  // in double, as the reference
    const int64_t at = (first + thread) * s.n_value_heads + head;
    const double x = thread < n ? double(d.a[at]) + d.dt_bias[head] : 0;
    gates[thread] = thread < n ? d.decay[head] * (x > 20 ? x : log1p(exp(x))) : 0;
    betas[thread] = thread < n ? float(1 / (1 + exp(-double(d.b[at])))) : 0;
  }
  __syncthreads();
  sum_decays(gates, logs, chunk.keeps, chunk.rests);
  if (thread < kTokens) chunk.betas[thread] = betas[thread];

  // Keys with keys from the first rows on, queries with keys from the last on: warps have as much to do.
  const auto row_quad = [&](int row, int64_t channel, int quad) {
    return row < n ? quads_at(d, first + row, channel)[quad] : make_uint4(0, 0, 0, 0);
  };
  for (int job = warp; job < 2 * kSteps; job += kWarps) {
    const bool of_keys = job < kSteps;
    const int tile = of_keys ? job : 2 * kSteps - 1 - job;
    const int64_t left_channel = of_keys ? s.keys() + key : key;
    Sums sums[kSteps] = {};
    for (int j = 0; j < s.key_dim / 16; ++j) {
      const int quad = 4 * j + c;
      const Left left(row_quad(16 * tile + r, left_channel, quad), row_quad(16 * tile + r + 8, left_channel, quad));
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        if (step <= tile) {
          multiply(sums[step].even, left, row_quad(16 * step + 2 * r, s.keys() + key, quad));
          multiply(sums[step].odd, left, row_quad(16 * step + 2 * r + 1, s.keys() + key, quad));
        }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      if (step <= tile)
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          const int t = 16 * tile + r + 8 * high, i = 16 * step + 4 * c;
          const auto decayed = [&](int e, bool sees) {
            return sees ? sums[step].at(high, e) * expf(float(logs[t] - logs[i + e])) : 0;
          };
          if (of_keys)
            *reinterpret_cast<float4*>(&triangle[t][i]) =
                make_float4(betas[t] * decayed(0, i < t), betas[t] * decayed(1, i + 1 < t),
                            betas[t] * decayed(2, i + 2 < t), betas[t] * decayed(3, i + 3 < t));
          else
            chunk.scores[(t * kTokens + i) / 4] =
                quad_of({decayed(0, i <= t), decayed(1, i + 1 <= t), decayed(2, i + 2 <= t), decayed(3, i + 3 <= t)});
        }
  }
  __syncthreads();

  // A column of the inverse a thread, by forward substitution.
  if (thread < kTokens) {
    for (int t = 0; t < kTokens; ++t) inverse[t][thread] = t == thread;
    for (int t = 1; t < kTokens; ++t) {
      float parts[4] = {};
      for (int i = 0; i < t; i += 4) {
        const float4 of = *reinterpret_cast<const float4*>(&triangle[t][i]);
        parts[0] = fmaf(of.x, inverse[i][thread], parts[0]);
        parts[1] = fmaf(of.y, inverse[i + 1][thread], parts[1]);
        parts[2] = fmaf(of.z, inverse[i + 2][thread], parts[2]);
        parts[3] = fmaf(of.w, inverse[i + 3][thread], parts[3]);
      }
      inverse[t][thread] -= (parts[0] + parts[1]) + (parts[2] + parts[3]);
    }
  }
  __syncthreads();
  for (int i = thread; i < kTokens * kTokens / 4; i += kThreads) {
    const int row = i / (kTokens / 4), quad = i % (kTokens / 4);
    chunk.solve[i] = quad_of(*reinterpret_cast<const float4*>(&inverse[row][4 * quad]));
  }
}

// --- Chunk by chunk through the states ---

/// What a block has of a chunk in shared memory; rows of quads by place().
template <int kKeys>
struct Stage {
  uint4 keys[kTokens * kKeys / 4], queries[kTokens * kKeys / 4];
  Chunk chunk;
};

/// The block begins to copy chunk `i` of a span; what is missing is 0.
template <int kKeys>
__device__ void start_chunk(const DeviceDelta& d, const DeltaSpan& span, int i, int head, Stage<kKeys>& to) {
  const DeltaShape& s = d.shape;
  const uint4* const queries = quads_at(d, span.first + int64_t(i) * kTokens, int64_t(s.key_head(head)) * s.key_dim);
  start_rows<kKeys>({queries, queries + s.keys() / 4, s.channels() / 4, span.n - i * kTokens, s.key_dim / 4},
                    to.queries, to.keys);
  const Chunk& chunk = chunk_of(d, span, i, head);
  start_triangle(chunk.solve, to.chunk.solve);
  start_triangle(chunk.scores, to.chunk.scores);
  const int thread = int(threadIdx.x);
  if (thread < 3 * kTokens / 4) gpu::copy_async16(to.chunk.keeps + 4 * thread, chunk.keeps + 4 * thread);
}

/// Warps that share the keys of 16 columns of a state. More of them make a chunk's chain shorter, which is its time.
template <int kKeys>
constexpr int kKeyWarps = kKeys >= 128 ? 2 : 1;
template <int kKeys>
constexpr int kBlockColumns = kColumns / kKeyWarps<kKeys>;

/// Two warps add their sums [16 columns, tokens]: of `known` both get all, of `out` each gets the tokens for which
/// mine(). `room` is shared memory that all warps have read.
template <class Mine>
__device__ void add_partner(uint4* room, Sums (&known)[kSteps], Sums (&out)[kSteps], const Mine& mine) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  constexpr int kValues = 2 * (kSteps + kSteps / 2);  // quads of floats of a lane
  auto* const of_warps = reinterpret_cast<float4*>(room);
  const auto each = [&](int of_warp, bool of_partner, const auto& visit) {  // the sums that a warp leaves there
    float4* at = of_warps + of_warp * kValues * 32 + lane;
    const auto both = [&](Sums& sums) {
      visit(sums.even, *at), at += 32;
      visit(sums.odd, *at), at += 32;
    };
#pragma unroll
    for (int step = 0; step < kSteps; ++step) both(known[step]);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      if (mine(step) == of_partner) both(out[step]);
  };
  __syncthreads();
  each(warp, false, [](const float(&from)[4], float4& to) { to = make_float4(from[0], from[1], from[2], from[3]); });
  __syncthreads();
  each(warp ^ 1, true,
       [](float(&to)[4], const float4& from) { to[0] += from.x, to[1] += from.y, to[2] += from.z, to[3] += from.w; });
}

/// A warp has 16 columns of a value head's state and some of their keys, transposed, as sums: [16 columns, keys]. So
/// are U, R and out: [16 columns, tokens]. Blocks: (value heads, columns, spans).
template <int kKeys>
__global__ void __launch_bounds__(kThreads) chunked_state_kernel(const DeviceDelta d, int n_stages) {
  constexpr int kParts = kKeyWarps<kKeys>, kGroups = kKeys / 16 / kParts;
  auto* const stages = gpu::dynamic_shared<Stage<kKeys>>();
  const DeltaShape& s = d.shape;
  const DeltaSpan span = d.spans[blockIdx.z];
  if (span.chunk < 0) return;
  const int lane = int(threadIdx.x) % 32, r = lane / 4, c = lane % 4, head = int(blockIdx.x);
  const int warp = int(threadIdx.x) / 32, part = warp % kParts, first_key = part * 16 * kGroups;
  const int column = int(blockIdx.y) * kBlockColumns<kKeys> + warp / kParts * 16 + r;  // and 8 behind it
  const int64_t value = int64_t(head) * s.value_dim;
  // Of two warps each finishes the output of every second 16 tokens.
  const auto mine = [&](int step) { return kParts == 1 || step % 2 != part; };
  static_assert(kParts <= 2 && kSteps % 2 == 0);
  // Read again at the end: addresses of the whole state would not fit beside it.
  Sums state[kGroups];
  const auto each_entry = [&](float* of_all, const auto& visit) {
    float* const matrix = of_all + value * s.key_dim;
    each_value(state, matrix + int64_t(first_key + 4 * c) * s.value_dim + column, s.value_dim,
               s.key_dim - first_key - 4 * c, s.value_dim - column, visit);
  };
  each_entry(span.path(d.states).before(0), [](float& entry, const float* at) { entry = at ? *at : 0; });

  const int n_chunks = (span.n + kTokens - 1) / kTokens;
  if (n_stages > 1) start_chunk(d, span, 0, head, stages[0]);
  gpu::copy_commit();
  for (int i = 0; i < n_chunks; ++i) {
    Stage<kKeys>& stage = stages[i % n_stages];
    const int next = i + n_stages - 1;
    if (next < n_chunks) start_chunk(d, span, next, head, stages[next % n_stages]);
    gpu::copy_commit();
    if (n_stages > 1) gpu::copy_wait<1>();
    else gpu::copy_wait<0>();
    __syncthreads();
    const int n = span.n - i * kTokens - 4 * c, n_columns = s.value_dim - column;
    const int64_t row = span.first + int64_t(i) * kTokens + 4 * c;
    Sums change[kSteps];  // values at first, asked for before they are needed
    each_value(change, d.mixed + row * s.channels() + 2 * s.keys() + value + column, s.channels(), n, n_columns,
               [](float& to, const float* at) { to = at ? *at : 0; });
    Sums known[kSteps] = {}, out[kSteps] = {};
    const uint4* const keys = stage.keys + first_key / 4;
    multiply_state(state, RowProduct<kKeys>{known, {keys, r, c}},
                   RowProduct<kKeys>{out, {stage.queries + first_key / 4, r, c}});
    if constexpr (kParts > 1) add_partner(stage.queries, known, out, mine);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float keeps[4], betas[4];
      load4(stage.chunk.keeps + 16 * step + 4 * c, keeps);
      load4(stage.chunk.betas + 16 * step + 4 * c, betas);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float &v = change[step].at(e / 4, e % 4), &of = known[step].at(e / 4, e % 4);
        of = betas[e % 4] * (v - keeps[e % 4] * of);
        v = 0;
        out[step].at(e / 4, e % 4) *= keeps[e % 4];
      }
    }
    multiply_below({change, {stage.chunk.solve, r, c}}, known);
    multiply_below({out, {stage.chunk.scores, r, c}}, change, mine);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      if (mine(step))
        each_value(reinterpret_cast<Sums(&)[1]>(out[step]), d.out + (row + 16 * step) * s.values() + value + column,
                   s.values(), n - 16 * step, n_columns, [](float of, float* at) {
                     if (at) *at = of;
                   });
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float rests[4];
      load4(stage.chunk.rests + 16 * step + 4 * c, rests);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        change[step].at(e / 4, e % 4) *= rests[e % 4];
      }
    }

    move_state<kKeys>(state, stage.chunk.keeps[kTokens - 1], change, keys, r, c);
    __syncthreads();  // all have read the stage
  }
  each_entry(d.spans[blockIdx.z].path(d.states).behind(span.n - 1), [](float entry, float* at) {
    if (at) *at = entry;
  });
  const int64_t block = int64_t(blockIdx.y) * gridDim.x + blockIdx.x;  // the blocks of a span move its tail on together
  for (int64_t channel = block * kThreads + threadIdx.x; channel < s.channels();
       channel += int64_t(gridDim.x) * gridDim.y * kThreads)
    move_tail(d, span, channel);
}

template <int kKeys>
void launch_chunks(gpu::StreamHandle stream, const DeviceDelta& d) {
  const unsigned heads = unsigned(d.shape.n_value_heads), spans = unsigned(d.n_spans);
  gpu::launch("delta chunks", chunk_kernel,
              {{heads, unsigned(gpu::ceil_div(d.most, kTokens)), spans}, kThreads, 0, stream}, d);
  const unsigned slices = unsigned(gpu::ceil_div(d.shape.value_dim, kBlockColumns<kKeys>));
  launch_stages<Stage<kKeys>>("delta states by chunks", chunked_state_kernel<kKeys>,
                              {{heads, slices, spans}, kThreads, 0, stream}, d.shared_bytes, d);
}

}  // namespace

bool has_delta_chunks(const DeltaShape& shape) {
  const size_t stage_bytes = shape.key_dim <= 64 ? sizeof(Stage<64>) : sizeof(Stage<kMostKeys>);
  return shape.key_dim % 16 == 0 && shape.key_dim <= kMostKeys && shape.value_dim % 4 == 0 &&
         stage_bytes <= size_t(gpu::most_shared_bytes());
}

void device_delta_chunks(gpu::StreamHandle stream, const DeviceDelta& d) {
  const auto blocks = unsigned(gpu::ceil_div(int64_t(d.most) * 2 * d.shape.n_key_heads, kWarps));
  gpu::launch("delta lengths", length_kernel, {{blocks, unsigned(d.n_spans)}, kThreads, 0, stream}, d);
  if (d.shape.key_dim <= 64) launch_chunks<64>(stream, d);
  else launch_chunks<kMostKeys>(stream, d);
}

}  // namespace ridge
