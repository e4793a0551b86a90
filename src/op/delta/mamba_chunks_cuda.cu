#include "op/delta/mamba_chunks_cuda.h"

#include "op/delta/chunk_products.h"

namespace ridge {
namespace {

using namespace chunks;

constexpr int kMostStateDim = 128;  ///< a state of more does not fit into the registers of its warps

/// Scores and factors of a chunk and a head.
struct Chunk {
  uint4 scores[kTokens * kTokens / 4];  ///< P in quads; quads behind the diagonal group are not set
  float keeps[kTokens];                 ///< exp(l_t)
  float rests[kTokens];                 ///< exp(l_C - l_t)
  float steps[kTokens];                 ///< dt_t
};
static_assert(sizeof(Chunk) == 4 * kMambaChunkFloats);

__device__ Chunk& chunk_of(const DeviceMamba& m, const DeltaSpan& span, int i, int head) {
  const int64_t at = (int64_t(span.chunk) + i) * m.shape.n_heads + head;
  return *reinterpret_cast<Chunk*>(m.chunks + at * kMambaChunkFloats);
}

/// C and B of a head's group from token `first` of a span on, of which there are n.
__device__ TokenRows rows_of(const DeviceMamba& m, const DeltaSpan& span, int first, int head) {
  const MambaShape& s = m.shape;
  const int64_t group = head / (s.n_heads / s.n_groups), b = s.inner() + group * s.state_dim;
  const auto* const keys = reinterpret_cast<const uint4*>(m.mixed + (span.first + first) * s.channels() + b);
  return {keys + int64_t(s.n_groups) * s.state_dim / 4, keys, s.channels() / 4, span.n - first, s.state_dim / 4};
}

/// Blocks: (heads, chunks of the longest span, spans).
__global__ void __launch_bounds__(kThreads) scores_kernel(const DeviceMamba m) {
  __shared__ double gates[kTokens], logs[kTokens];
  const MambaShape& s = m.shape;
  const DeltaSpan span = m.spans[blockIdx.z];
  const int from = int(blockIdx.y) * kTokens, n = min(kTokens, span.n - from);
  if (span.chunk < 0 || n <= 0) return;
  const int thread = int(threadIdx.x), warp = thread / 32, r = thread % 32 / 4, c = thread % 4, head = int(blockIdx.x);
  Chunk& chunk = chunk_of(m, span, int(blockIdx.y), head);

  if (thread < kTokens) {
    float dt = 0;
    if (thread < n) {
      const int64_t row = (span.first + from + thread) * s.columns();
      const double x = double(m.in[row + s.inner() + s.channels() + head]) + m.dt_bias[head];
      dt = float(x > 20 ? x : log1p(exp(x)));
    }
    chunk.steps[thread] = dt;
    gates[thread] = double(m.decay[head]) * dt;
  }
  __syncthreads();
  sum_decays(gates, logs, chunk.keeps, chunk.rests);

  // A warp a square of 16 tokens with 16 on the diagonal or below.
  const TokenRows rows = rows_of(m, span, from, head);
  const auto quad_of_row = [&](const uint4* of, int row, int quad) {
    return row < n ? of[row * rows.pitch + quad] : make_uint4(0, 0, 0, 0);
  };
  for (int job = warp; job < kSteps * kSteps; job += kWarps) {
    const int tile = job / kSteps, step = job % kSteps;
    if (step > tile) continue;
    Sums sums = {};
    for (int j = 0; j < s.state_dim / 16; ++j) {
      const int quad = 4 * j + c;
      const Left left(quad_of_row(rows.queries, 16 * tile + r, quad),
                      quad_of_row(rows.queries, 16 * tile + r + 8, quad));
      multiply(sums.even, left, quad_of_row(rows.keys, 16 * step + 2 * r, quad));
      multiply(sums.odd, left, quad_of_row(rows.keys, 16 * step + 2 * r + 1, quad));
    }
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const int t = 16 * tile + r + 8 * high, i = 16 * step + 4 * c;
      const auto decayed = [&](int e) {
        return i + e <= t ? sums.at(high, e) * expf(float(logs[t] - logs[i + e])) : 0;
      };
      chunk.scores[(t * kTokens + i) / 4] = quad_of({decayed(0), decayed(1), decayed(2), decayed(3)});
    }
  }
}

/// Shared memory of a block for a chunk; rows of quads by place().
template <int kKeys>
struct Stage {
  uint4 keys[kTokens * kKeys / 4], queries[kTokens * kKeys / 4];
  Chunk chunk;
};

template <int kKeys>
__device__ void start_chunk(const DeviceMamba& m, const DeltaSpan& span, int i, int head, Stage<kKeys>& to) {
  start_rows<kKeys>(rows_of(m, span, i * kTokens, head), to.queries, to.keys);
  const Chunk& chunk = chunk_of(m, span, i, head);
  start_triangle(chunk.scores, to.chunk.scores);
  const int thread = int(threadIdx.x);
  if (thread < 3 * kTokens / 4) gpu::copy_async16(to.chunk.keeps + 4 * thread, chunk.keeps + 4 * thread);
}

/// Blocks: (heads, columns, spans).
template <int kKeys>
__global__ void __launch_bounds__(kThreads) state_kernel(const DeviceMamba m, int n_stages) {
  auto* const stages = gpu::dynamic_shared<Stage<kKeys>>();
  const MambaShape& s = m.shape;
  const DeltaSpan span = m.spans[blockIdx.z];
  if (span.chunk < 0) return;
  const int lane = int(threadIdx.x) % 32, r = lane / 4, c = lane % 4, head = int(blockIdx.x);
  const int column = int(blockIdx.y) * kColumns + int(threadIdx.x) / 32 * 16 + r;  // and 8 behind it
  const int64_t value = int64_t(head) * s.head_dim + column;
  const int n_columns = s.head_dim - column;
  Sums state[kKeys / 16];
  const auto each_entry = [&](float* of_all, const auto& visit) {
    each_value(state, of_all + int64_t(head) * s.head_dim * s.state_dim + int64_t(4 * c) * s.head_dim + column,
               s.head_dim, s.state_dim - 4 * c, n_columns, visit);
  };
  each_entry(span.path(m.states).before(0), [](float& entry, const float* at) { entry = at ? *at : 0; });

  const int n_chunks = (span.n + kTokens - 1) / kTokens;
  const float d = m.d[head];
  if (n_stages > 1) start_chunk(m, span, 0, head, stages[0]);
  gpu::copy_commit();
  for (int i = 0; i < n_chunks; ++i) {
    const Stage<kKeys>& stage = stages[i % n_stages];
    const int next = i + n_stages - 1;
    if (next < n_chunks) start_chunk(m, span, next, head, stages[next % n_stages]);
    gpu::copy_commit();
    if (n_stages > 1) gpu::copy_wait<1>();
    else gpu::copy_wait<0>();
    __syncthreads();
    const int n = span.n - i * kTokens - 4 * c;
    const int64_t row = span.first + int64_t(i) * kTokens + 4 * c;
    Sums change[kSteps], out[kSteps] = {};  // x at first, asked for before it is needed
    each_value(change, m.mixed + row * s.channels() + value, s.channels(), n, n_columns,
               [](float& to, const float* at) { to = at ? *at : 0; });
    multiply_state(state, RowProduct<kKeys>{out, {stage.queries, r, c}});
    const auto each_token = [&](const float* of, const auto& visit) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        float factors[4];
        load4(of + 16 * step + 4 * c, factors);
#pragma unroll
        for (int e = 0; e < 8; ++e) visit(change[step].at(e / 4, e % 4), out[step].at(e / 4, e % 4), factors[e % 4]);
      }
    };
    each_token(stage.chunk.keeps, [&](float x, float& sum, float keep) { sum = fmaf(keep, sum, d * x); });
    each_token(stage.chunk.steps, [](float& u, float, float dt) { u *= dt; });
    multiply_below({out, {stage.chunk.scores, r, c}}, change);
    each_value(out, m.out + row * s.inner() + value, s.inner(), n, n_columns, [](float of, float* at) {
      if (at) *at = of;
    });
    each_token(stage.chunk.rests, [](float& u, float, float rest) { u *= rest; });
    move_state<kKeys>(state, stage.chunk.keeps[kTokens - 1], change, stage.keys, r, c);
    __syncthreads();  // all have read the stage
  }
  each_entry(span.path(m.states).behind(span.n - 1), [](float entry, float* at) {
    if (at) *at = entry;
  });
}

template <int kKeys>
void launch_states(gpu::StreamHandle stream, const DeviceMamba& m) {
  const dim3 blocks(unsigned(m.shape.n_heads), unsigned(gpu::ceil_div(m.shape.head_dim, kColumns)),
                    unsigned(m.n_spans));
  launch_stages<Stage<kKeys>>("mamba states by chunks", state_kernel<kKeys>, {blocks, kThreads, 0, stream},
                              m.shared_bytes, m);
}

}  // namespace

bool has_mamba_chunks(const MambaShape& shape) {
  const size_t stage_bytes = shape.state_dim <= 64 ? sizeof(Stage<64>) : sizeof(Stage<kMostStateDim>);
  return shape.state_dim % 16 == 0 && shape.state_dim <= kMostStateDim && shape.inner() % 4 == 0 &&
         stage_bytes <= size_t(gpu::most_shared_bytes());
}

void device_mamba_chunks(gpu::StreamHandle stream, const DeviceMamba& m) {
  const dim3 blocks(unsigned(m.shape.n_heads), unsigned(gpu::ceil_div(m.most, kTokens)), unsigned(m.n_spans));
  gpu::launch("mamba chunks", scores_kernel, {blocks, kThreads, 0, stream}, m);
  if (m.shape.state_dim <= 64) launch_states<64>(stream, m);
  else launch_states<kMostStateDim>(stream, m);
}

}  // namespace ridge
