#include "op/gemv/half_gemv_cuda.h"

#include <algorithm>

#include "op/gemm/tensor_gemm_cuda.h"
#include "op/gemv/brick_product_cuda.h"

namespace ridge {
namespace {

using namespace bricks;

// Columns of B are 4 tokens times 2 planes. The bricks of all tiles, in memory's order, are dealt out to the blocks in
// equal ranges; inside its range a block's warps take bricks in turns, each through a ring of its own in shared memory,
// so that the loads never stop at a tile's end. Where a tile ends the warps add up. A tile that several blocks share is
// finished by the last one to arrive, which adds all parts in the blocks' order.
//
// x lies in shared memory as a whole. If it is too large for that, the columns are cut into segments and each segment
// gets its own group of blocks.

constexpr int kTokens = 4;
constexpr int kSlotFloats = 64;  // 16 rows x 4 tokens: value i (0, 1) of a lane is row r + 8 i, token c

struct GemvPlan {
  const uint8_t* bricks;
  int n_tiles, bricks_per_tile, n_tokens;
  int n_segments, blocks_per_segment;
  int64_t n_in;
  const float* x;
  const float* norm_weight;
  float norm_eps;
  int x_blocks;  ///< of 32 columns, room in shared memory
  uint32_t* counters;
  float* slots;  ///< [n_segments][n_tiles + blocks_per_segment][kSlotFloats]
  Outputs out;
};

/// Segments and the blocks' shares of them.
struct Segment {
  int first_brick, n_bricks;  // of each tile
  int total;                  // of all tiles

  __host__ __device__ Segment(const GemvPlan& p, int i)
      : first_brick(int(int64_t(i) * p.bricks_per_tile / p.n_segments)),
        n_bricks(int(int64_t(i + 1) * p.bricks_per_tile / p.n_segments) - first_brick),
        total(p.n_tiles * n_bricks) {}
  __device__ int first_of(const GemvPlan& p, int block) const {
    return int(int64_t(block) * total / p.blocks_per_segment);
  }
  __device__ int owner(const GemvPlan& p, int brick) const {
    return int((int64_t(brick + 1) * p.blocks_per_segment - 1) / total);
  }
};

template <class F>
constexpr int kThreads = F::kGemvWarps * 32;
template <class F>
constexpr int kRingBytes = F::kGemvWarps* F::kGemvStages* F::kBytes;
/// Behind the rings lie the warps' sums of two tiles, then the planes of x, then the sums of x.
template <class F>
constexpr int kFixedBytes = kRingBytes<F> + 2 * F::kGemvWarps* kSlotFloats * 4;
/// Bytes of 32 columns of x.
int x_block_bytes(int64_t n_tokens) { return int(n_tokens) * (2 * 64 + 4); }

/// Reads x, fills the planes of the bricks that this block needs and their sums, and leaves each token's 1 / scale.
template <class F>
__device__ void stage_x(const GemvPlan& p, const Segment& segment, int start, int end, uint4* planes, float* sums,
                        float* inverse_scale) {
  __shared__ double squares_of[kTokens][F::kGemvWarps];
  __shared__ float largest_of[kTokens][F::kGemvWarps];
  const int first = start % segment.n_bricks, n_needed = end - start;
  const auto is_needed = [&](int brick) {  // of the segment
    return (brick < first ? brick + segment.n_bricks : brick) - first < n_needed;
  };
  const int64_t first_k = int64_t(segment.first_brick) * F::kColumns;
  const int64_t last_k = min(p.n_in, first_k + int64_t(segment.n_bricks) * F::kColumns);

  for (int token = 0; token < p.n_tokens; ++token) {
    const float* x = p.x + token * p.n_in;
    double squares = 0;
    float largest = 0;
    if (p.norm_weight) {
      for (int64_t k = threadIdx.x; k < p.n_in; k += kThreads<F>) {
        squares += double(x[k]) * x[k];
        largest = fmaxf(largest, fabsf(x[k] * p.norm_weight[k]));
      }
      squares = gpu::warp_sum(squares);
    } else {
      for (int64_t k = first_k + threadIdx.x; k < last_k; k += kThreads<F>)
        if (is_needed(int(k - first_k) / F::kColumns)) largest = fmaxf(largest, fabsf(x[k]));
    }
    largest = gpu::warp_max(largest);
    if (threadIdx.x % 32 == 0) {
      squares_of[token][threadIdx.x / 32] = squares;
      largest_of[token][threadIdx.x / 32] = largest;
    }
  }
  __syncthreads();
  for (int token = 0; token < p.n_tokens; ++token) {
    double squares = 0;
    float largest = 0;
    for (int w = 0; w < F::kGemvWarps; ++w) {
      squares += squares_of[token][w];
      largest = fmaxf(largest, largest_of[token][w]);
    }
    TokenX x{p.x + token * p.n_in, p.norm_weight, 1, p.n_in};
    if (p.norm_weight) {
      x.factor = 1.0 / sqrt(squares / double(p.n_in) + p.norm_eps);
      largest *= float(x.factor);
    }
    const float scale = plane_scale(largest);
    if (threadIdx.x == 0) inverse_scale[token] = 1.0f / scale;
    for (int unit = int(threadIdx.x); unit < segment.n_bricks * F::kColumns / 8; unit += kThreads<F>) {
      const int block = unit / 4, c = unit % 4;
      if (!is_needed(block * 32 / F::kColumns)) continue;
      uint4* to = planes + (block * 2 * p.n_tokens + 2 * token) * 4 + c;
      float sum = split_lane<F::kBfloat>(x, scale, first_k + 32 * block, c, to[0], to[4]);
      if constexpr (F::kHasMin) {
        static_assert(F::kColumns % 256 == 0);  // a warp's 32 units are of one brick: all lanes are here
        sum += __shfl_xor_sync(gpu::kAllLanes, sum, 1);
        sum += __shfl_xor_sync(gpu::kAllLanes, sum, 2);
        if (c == 0) sums[block * p.n_tokens + token] = sum;
      }
    }
  }
}

/// Finishes a tile that the block has summed up to `value`, or its part of it: one warp.
__device__ void finish_tile(const GemvPlan& p, const Segment& segment, int start, int end, int tile, float2 value) {
  const int lane = int(threadIdx.x) % 32, r = lane / 4, c = lane % 4;
  const int first = tile * segment.n_bricks, last = first + segment.n_bricks - 1;
  if (p.n_segments > 1 || first < start || last >= end) {
    const auto slot = [&](int of_segment, int block) {
      return p.slots + (int64_t(of_segment) * (p.n_tiles + p.blocks_per_segment) + tile + block) * kSlotFloats;
    };
    float* mine = slot(int(blockIdx.x) / p.blocks_per_segment, int(blockIdx.x) % p.blocks_per_segment);
    mine[lane] = value.x;
    mine[32 + lane] = value.y;
    __threadfence();
    __syncwarp();
    int n_parts = 0;
    for (int s = 0; s < p.n_segments; ++s) {
      const Segment other(p, s);
      const int at = tile * other.n_bricks;
      n_parts += other.owner(p, at + other.n_bricks - 1) - other.owner(p, at) + 1;
    }
    unsigned arrived = 0;
    if (lane == 0) arrived = atomicAdd(p.counters + tile, 1u);
    if (int(__shfl_sync(gpu::kAllLanes, arrived, 0)) + 1 < n_parts) return;
    __threadfence();
    if (lane == 0) p.counters[tile] = 0;
    value = {0, 0};
    for (int s = 0; s < p.n_segments; ++s) {
      const Segment other(p, s);
      const int at = tile * other.n_bricks;
      const int last_block = other.owner(p, at + other.n_bricks - 1);
      for (int block = other.owner(p, at); block <= last_block; ++block) {
        const float* part = slot(s, block);
        value.x += __ldcg(part + lane);
        value.y += __ldcg(part + 32 + lane);
      }
    }
  }
  if (c < p.n_tokens) store_rows(p.out, tile, r, c, value.x, value.y);
}

template <class F>
__global__ void __launch_bounds__(kThreads<F>, 1) gemv_kernel(const GemvPlan p) {
  constexpr int kWarps = F::kGemvWarps, kStages = F::kGemvStages;
  auto* const shared = gpu::dynamic_shared<uint8_t>();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  auto* const ring = shared + warp * kStages * F::kBytes;
  auto* const warp_sums = reinterpret_cast<float*>(shared + kRingBytes<F>);                 // [2][kWarps][kSlotFloats]
  auto* const planes = reinterpret_cast<uint4*>(shared + kFixedBytes<F>);                   // [x_blocks][2 n_tokens][4]
  auto* const x_sums = reinterpret_cast<float*>(planes + p.x_blocks * 2 * p.n_tokens * 4);  // [x_blocks][n_tokens]
  __shared__ float inverse_scale[kTokens];

  const int block = int(blockIdx.x) % p.blocks_per_segment;
  const Segment segment(p, int(blockIdx.x) / p.blocks_per_segment);
  const int start = segment.first_of(p, block), end = segment.first_of(p, block + 1);

  // The warp's next brick to load. Where a segment's tile ends the rest of the tile is jumped over.
  int next = start + warp, next_of_tile = next % segment.n_bricks;
  const int64_t jump = int64_t(p.bricks_per_tile - segment.n_bricks) * F::kBytes;
  const uint8_t* from =
      p.bricks +
      (next / segment.n_bricks * int64_t(p.bricks_per_tile) + segment.first_brick + next_of_tile) * F::kBytes +
      lane * 16;
  const uint64_t policy = gpu::evict_first_policy();  // a step's weights are more than L2 holds until the next step
  const auto load_next = [&](int stage) {
    if (next < end) {
      uint8_t* to = ring + stage * F::kBytes + lane * 16;
#pragma unroll
      for (int i = 0; i < F::kBytes / 16; i += 32)
        if (i + 32 <= F::kBytes / 16 || i + lane < F::kBytes / 16)
          gpu::copy_async16(to + i * 16, from + i * 16, policy);
    }
    gpu::copy_commit();
    next += kWarps;
    from += kWarps * F::kBytes;
    if (jump == 0) return;
    for (next_of_tile += kWarps; next_of_tile >= segment.n_bricks; next_of_tile -= segment.n_bricks) from += jump;
  };
  for (int stage = 0; stage < kStages - 1; ++stage) load_next(stage);
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
  stage_x<F>(p, segment, start, end, planes, x_sums, inverse_scale);
  __syncthreads();

  // Lanes of columns that no token has read another one's: what they multiply ends in columns that nobody looks at.
  const int c = lane % 4, column = min(lane / 4, 2 * p.n_tokens - 1);
  const uint4* const lane_planes = planes + column * 4 + c;
  const float* const lane_sums = x_sums + min(c, p.n_tokens - 1);
  const int plane_stride = 8 * p.n_tokens;
  int stage = 0, n_finished = 0, i = start + warp;
  for (int tile = start / segment.n_bricks; tile <= (end - 1) / segment.n_bricks; ++tile, ++n_finished) {
    const int tile_start = tile * segment.n_bricks, tile_end = min(end, tile_start + segment.n_bricks);
    float sum[1][1][4] = {};
    for (; i < tile_end; i += kWarps) {
      gpu::copy_wait<kStages - 2>();
      __syncwarp();  // the whole brick has come, and the one before it has been used
      load_next(stage == 0 ? kStages - 1 : stage - 1);
      const int first_block = (i - tile_start) * (F::kColumns / 32);
      const uint4* const brick_planes = lane_planes + first_block * plane_stride;
      const float* const brick_sums = lane_sums + first_block * p.n_tokens;
      multiply<F>(
          sum, ring + stage * F::kBytes, lane, [&](int k32, int) { return brick_planes[k32 * plane_stride]; },
          [&](int k32, int) { return brick_sums[k32 * p.n_tokens]; });
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    float* const parts = warp_sums + n_finished % 2 * kWarps * kSlotFloats;
    parts[warp * kSlotFloats + lane] = sum[0][0][0] + sum[0][0][1];
    parts[warp * kSlotFloats + 32 + lane] = sum[0][0][2] + sum[0][0][3];
    __syncthreads();
    // The others go on; they write to these parts again two tiles on, behind a barrier that this warp comes to later.
    if (warp == n_finished % kWarps) {
      float2 value = {0, 0};
      for (int w = 0; w < kWarps; ++w) {
        value.x += parts[w * kSlotFloats + lane];
        value.y += parts[w * kSlotFloats + 32 + lane];
      }
      const float scale = c < p.n_tokens ? inverse_scale[c] : 0.0f;
      finish_tile(p, segment, start, end, tile, {value.x * scale, value.y * scale});
    }
  }
  gpu::copy_wait<0>();
}

struct Launch {
  GemvPlan plan;
  int n_blocks, shared_bytes;
  int64_t scratch_bytes;
};

template <class F>
Launch plan_launch(const BrickMatrix& w, const BrickCall& call) {
  Launch launch{};
  GemvPlan& p = launch.plan;
  const int64_t n_tiles = w.n_tiles(), per_tile = w.bricks_per_tile();
  expect(n_tiles <= kCounters && n_tiles * per_tile < INT32_MAX / 2, "gemv: too many rows");
  p = {.bricks = w.data.as<uint8_t>(),
       .n_tiles = int(n_tiles),
       .bricks_per_tile = int(per_tile),
       .n_tokens = int(call.n_tokens),
       .n_in = w.n_in,
       .x = call.x,
       .norm_weight = call.norm_weight,
       .norm_eps = call.norm_eps,
       .out = make_outputs(w, call)};
  constexpr int kBlocksPerBrick = F::kColumns / 32;
  const int block_bytes = x_block_bytes(call.n_tokens);
  // 1 KiB is left for the variables that are not dynamic.
  const int64_t most_bricks = (gpu::most_shared_bytes() - 1024 - kFixedBytes<F>) / block_bytes / kBlocksPerBrick;
  expect(most_bricks > 0, "gemv: this device has too little shared memory per block");
  p.n_segments = int(gpu::ceil_div(per_tile, most_bricks));
  p.x_blocks = int(gpu::ceil_div(per_tile, p.n_segments)) * kBlocksPerBrick;
  const int blocks = call.n_blocks > 0 ? call.n_blocks : gpu::multiprocessors();
  const int64_t fewest_bricks = n_tiles * (per_tile / p.n_segments);
  p.blocks_per_segment = int(std::clamp<int64_t>(blocks / p.n_segments, 1, fewest_bricks));
  launch.n_blocks = p.n_segments * p.blocks_per_segment;
  launch.shared_bytes = kFixedBytes<F> + p.x_blocks * block_bytes;
  launch.scratch_bytes = 4 * kCounters + int64_t(p.n_segments) * (n_tiles + p.blocks_per_segment) * kSlotFloats * 4;
  return launch;
}

}  // namespace

namespace bricks {

void check_scratch(const gpu::Buffer& scratch, int64_t needed) {
  expect(scratch.bytes() >= needed, "product with bricks: the scratch is too small");
}

void check_call(const BrickMatrix& w, const BrickCall& call) {
  expect(call.n_tokens > 0 && call.x != nullptr && w.data.bytes() > 0, "product with bricks: no x or no weights");
  for (int i = 0; i < w.n_parts; ++i) {
    expect(call.y[i] != nullptr, "product with bricks: a part without y");
    expect(!w.paired || (call.bias[i] == nullptr && !call.residual),
           "product with bricks: a GLU with bias or residual");
  }
}

}  // namespace bricks

int64_t brick_scratch_bytes(const BrickMatrix& w, const BrickCall& call) {
  if (call.n_tokens > kTokens) return tensor_gemm_scratch_bytes(w, call, 2);
  return bricks::with_format(w.format, [&](auto f) { return plan_launch<decltype(f)>(w, call).scratch_bytes; });
}

void device_half_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call,
                      const gpu::Buffer& scratch) {
  check_call(w, call);
  if (call.n_tokens > kTokens) return device_tensor_gemm(stream, w, call, 2, scratch);
  with_format(w.format, [&](auto f) {
    using F = decltype(f);
    Launch launch = plan_launch<F>(w, call);
    check_scratch(scratch, launch.scratch_bytes);
    launch.plan.counters = scratch.as<uint32_t>();
    launch.plan.slots = scratch.as<float>() + kCounters;
    gpu::allow_shared_bytes("shared memory of gemv", gemv_kernel<F>, size_t(launch.shared_bytes));
    gpu::launch("gemv", gemv_kernel<F>,
                {unsigned(launch.n_blocks), kThreads<F>, size_t(launch.shared_bytes), stream, call.overlap},
                launch.plan);
  });
}

}  // namespace ridge
