#include "op/gemm/tensor_gemm_cuda.h"

#include <algorithm>

#include "op/gemv/brick_product_cuda.h"

namespace ridge {
namespace {

using namespace bricks;

// Two launches. The first writes the planes of x in the order of B fragments. The second multiplies: a block makes
// areas of 128 rows times up to 128 columns (token, plane), a step being the bricks of eight tiles and the same columns
// of k of x, which pass through a ring in shared memory. The steps of all areas are dealt out to the blocks in equal
// ranges; an area that several blocks share is finished by the last one to arrive, which adds the parts in the blocks'
// order.

constexpr int kThreads = 256, kAreaTiles = 8;
constexpr int kMostSharedBytes = 227 << 10;  // of a block on Hopper; other devices may refuse the launch

// --- Planes of x ---

/// x as the product reads it: words [column tile of 8][32 columns of k][lane] of 16 bytes, sums of x over 32 columns of
/// k [column tile][32 columns of k][8] (zero in the low plane's columns), and 1 / scale of each token.
struct PlanesOfX {
  uint4* words;
  float* sums;
  float* inverse_scale;
  int blocks;  ///< of 32 columns of k
  int planes;
};

struct XPlan {
  int64_t n_tokens, n_in;
  const float* x;
  const float* norm_weight;
  float norm_eps;
  PlanesOfX to;
};

constexpr int kPlanesThreads = 512;  // few tokens are few blocks, whose time is all latency

/// A block a token, and one for each column that only fills up the last area.
template <bool kBfloat>
__global__ void __launch_bounds__(kPlanesThreads) planes_kernel(const XPlan p) {
  __shared__ float parts[kPlanesThreads / 32];
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
  const int64_t token = blockIdx.x;
  const bool exists = token < p.n_tokens;
  TokenX x{p.x + token * p.n_in, p.norm_weight, 1, exists ? p.n_in : 0};
  double squares = 0;
  float largest = 0;
  for (int64_t k = threadIdx.x; k < x.n_in; k += kPlanesThreads) {
    const float value = x.x[k];
    squares += double(value) * value;
    largest = fmaxf(largest, fabsf(p.norm_weight ? value * p.norm_weight[k] : value));
  }
  largest = gpu::warp_max(largest);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = largest;
  __syncthreads();
  for (const float part : parts) largest = fmaxf(largest, part);
  if (p.norm_weight) {
    x.factor = 1.0 / sqrt(gpu::block_sum<kPlanesThreads>(squares) / double(p.n_in) + p.norm_eps);
    largest *= float(x.factor);
  }
  const float scale = plane_scale(largest);
  if (exists && threadIdx.x == 0) p.to.inverse_scale[token] = 1.0f / scale;

  const auto words_of = [&](int64_t column, int block, int c) -> uint4& {
    return p.to.words[(column / 8 * p.to.blocks + block) * 32 + column % 8 * 4 + c];
  };
  const int64_t column = token * p.to.planes;
  const int n_units = p.to.blocks * 4;
  for (int first = 0; first < n_units; first += kPlanesThreads) {
    const int unit = first + int(threadIdx.x), block = unit / 4, c = unit % 4;
    uint4 high = {}, low = {};
    float sum = unit < n_units ? split_lane<kBfloat>(x, scale, 32 * int64_t(block), c, high, low) : 0.0f;
    sum += __shfl_xor_sync(gpu::kAllLanes, sum, 1);
    sum += __shfl_xor_sync(gpu::kAllLanes, sum, 2);
    if (unit >= n_units) continue;
    words_of(column, block, c) = high;
    if (p.to.planes == 2) words_of(column + 1, block, c) = low;
    if (c == 0)
      for (int plane = 0; plane < p.to.planes; ++plane)
        p.to.sums[((column + plane) / 8 * p.to.blocks + block) * 8 + (column + plane) % 8] = plane == 0 ? sum : 0.0f;
  }
}

// --- The product ---

/// How a block's eight warps share an area: kRowWarps times its rows, the rest its columns.
template <int kRowWarpsOf, int kColumnTilesOf>
struct Shape {
  static constexpr int kRowWarps = kRowWarpsOf, kColumnWarps = 8 / kRowWarps;
  static constexpr int kTiles = kAreaTiles / kRowWarps, kColumnTiles = kColumnTilesOf;  // of a warp
  static constexpr int kAreaColumnTiles = kColumnWarps * kColumnTiles;
  static constexpr int kValues = kTiles * kColumnTiles * 4;  // sums of a thread
};
using Columns16 = Shape<8, 2>;
using Columns32 = Shape<8, 4>;
using Columns64 = Shape<8, 8>;
using Columns128 = Shape<4, 8>;

struct GemmPlan {
  const uint8_t* bricks;
  int n_tiles, bricks_per_tile;
  int n_column_areas, n_areas;
  int64_t n_tokens;
  PlanesOfX x;
  uint32_t* counters;
  float* slots;  ///< [block][the first of its areas, the last][kValues][kThreads]
  Outputs out;

  __device__ int n_steps() const { return n_areas * bricks_per_tile; }
  __device__ int first_step(int64_t block) const { return int(block * n_steps() / gridDim.x); }
};

/// A step, counted up without divisions: areas of the same rows follow one another.
struct Step {
  int brick, column_area, row_area;

  __device__ Step(const GemmPlan& p, int step)
      : brick(step % p.bricks_per_tile),
        column_area(step / p.bricks_per_tile % p.n_column_areas),
        row_area(step / p.bricks_per_tile / p.n_column_areas) {}
  __device__ void advance(const GemmPlan& p) {
    if (++brick < p.bricks_per_tile) return;
    brick = 0;
    if (++column_area < p.n_column_areas) return;
    column_area = 0;
    ++row_area;
  }
};

template <class F>
constexpr int kStepBlocks = F::kColumns / 32;  // of k
/// A step in shared memory: bricks, planes of x, sums of x.
template <class F, class S>
constexpr int kPlanesAt = kAreaTiles* F::kBytes;
template <class F, class S>
constexpr int kSumsAt = kPlanesAt<F, S> + S::kAreaColumnTiles* kStepBlocks<F> * 512;
template <class F, class S>
constexpr int kStepBytes = kSumsAt<F, S> + (F::kHasMin ? S::kAreaColumnTiles * kStepBlocks<F> * 32 : 0);
template <class F, class S>
constexpr int kSteps = std::clamp((kMostSharedBytes - 1024) / kStepBytes<F, S>, 2, 6);

/// Begins to copy the first n of kPieces pieces of kPiece bytes, `stride` bytes apart, with all threads of the block.
template <int kPiece, int kPieces>
__device__ void copy_pieces(uint8_t* to, const uint8_t* from, int64_t stride, int n) {
  constexpr int kCopies = kPiece / 16 * kPieces;
#pragma unroll(kCopies > 12 * kThreads ? 4 : 12)
  for (int first = 0; first < kCopies; first += kThreads) {
    const int i = first + int(threadIdx.x), piece = i / (kPiece / 16);
    if ((first + kThreads <= kCopies || i < kCopies) && piece < n)
      gpu::copy_async16(to + i * 16, from + piece * stride + i % (kPiece / 16) * 16);
  }
}

template <class F, class S>
__device__ void load_bricks(const GemmPlan& p, const Step& step, uint8_t* to) {
  const int tile = step.row_area * kAreaTiles, n_tiles = p.n_tiles - tile;
  const uint8_t* from = p.bricks + (int64_t(tile) * p.bricks_per_tile + step.brick) * F::kBytes;
  copy_pieces<F::kBytes, kAreaTiles>(to, from, int64_t(p.bricks_per_tile) * F::kBytes, n_tiles);
}
template <class F, class S>
__device__ void load_x(const GemmPlan& p, const Step& step, uint8_t* to) {
  constexpr int kBlocks = kStepBlocks<F>, kTiles = S::kAreaColumnTiles;
  const int64_t block = int64_t(step.column_area) * kTiles * p.x.blocks + step.brick * kBlocks;
  copy_pieces<kBlocks * 512, kTiles>(to + kPlanesAt<F, S>, reinterpret_cast<const uint8_t*>(p.x.words + block * 32),
                                     int64_t(p.x.blocks) * 512, kTiles);
  if constexpr (F::kHasMin)
    copy_pieces<kBlocks * 32, kTiles>(to + kSumsAt<F, S>, reinterpret_cast<const uint8_t*>(p.x.sums + block * 8),
                                      int64_t(p.x.blocks) * 32, kTiles);
}

/// Whether this block is to finish an area of which others have summed parts; `sum` is then the whole.
template <class S>
__device__ bool gather_parts(const GemmPlan& p, int area, int start, float (&sum)[S::kTiles][S::kColumnTiles][4]) {
  const int n_steps = p.n_steps(), first = area * p.bricks_per_tile, last = first + p.bricks_per_tile - 1;
  const auto owner = [&](int step) { return int((int64_t(step + 1) * gridDim.x - 1) / n_steps); };
  const auto slot = [&](int64_t block, bool is_first_area) {
    return p.slots + (block * 2 + (is_first_area ? 0 : 1)) * S::kValues * kThreads + threadIdx.x;
  };
  float* values = &sum[0][0][0];
  float* mine = slot(blockIdx.x, start / p.bricks_per_tile == area);
#pragma unroll
  for (int i = 0; i < S::kValues; ++i) mine[i * kThreads] = values[i];
  __threadfence();
  __syncthreads();
  __shared__ bool is_last;
  const int first_block = owner(first), last_block = owner(last);
  if (threadIdx.x == 0) {
    is_last = atomicAdd(p.counters + area, 1u) == unsigned(last_block - first_block);
    if (is_last) p.counters[area] = 0;
  }
  __syncthreads();
  if (!is_last) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < S::kValues; ++i) values[i] = 0;
  for (int block = first_block; block <= last_block; ++block) {
    const float* part = slot(block, p.first_step(block) / p.bricks_per_tile == area);
#pragma unroll
    for (int i = 0; i < S::kValues; ++i) values[i] += __ldcg(part + i * kThreads);
  }
  return true;
}

/// Stores the sums of a finished area, which are used up. One column tile after the other moves to the front: indices
/// of registers are constants, and the code of a store should be there once and not sixteen times.
template <class S>
__device__ void store_area(const GemmPlan& p, const Step& step, int row_warp, int column_warp,
                           float (&sum)[S::kTiles][S::kColumnTiles][4]) {
  const int lane = int(threadIdx.x) % 32, r = lane / 4, c = lane % 4;
  const int first_tile = step.row_area * kAreaTiles + row_warp * S::kTiles;
  int64_t column = (int64_t(step.column_area) * S::kAreaColumnTiles + column_warp * S::kColumnTiles) * 8 + 2 * c;
#pragma unroll 1
  for (int n = 0; n < S::kColumnTiles; ++n, column += 8) {
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
      float(&d)[4] = sum[m][0];
      if (p.x.planes == 2) d[0] += d[1], d[2] += d[3];
#pragma unroll 1
      for (int i = 0; i < 3 - p.x.planes; ++i) {
        const int64_t token = p.x.planes == 2 ? column / 2 : column + i;
        if (token >= p.n_tokens || first_tile + m >= p.n_tiles) break;
        const float scale = p.x.inverse_scale[token];
        store_rows(p.out, first_tile + m, r, token, (i == 0 ? d[0] : d[1]) * scale, (i == 0 ? d[2] : d[3]) * scale);
      }
#pragma unroll
      for (int to = 0; to + 1 < S::kColumnTiles; ++to)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[m][to][i] = sum[m][to + 1][i];
    }
  }
}

template <class F, class S>
__global__ void __launch_bounds__(kThreads, 1) gemm_kernel(const GemmPlan p) {
  constexpr int kRing = kSteps<F, S>, kBlocks = kStepBlocks<F>, kBytes = kStepBytes<F, S>;
  auto* const ring = gpu::dynamic_shared<uint8_t>();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int row_warp = warp / S::kColumnWarps, column_warp = warp % S::kColumnWarps;
  const int start = p.first_step(blockIdx.x), end = p.first_step(blockIdx.x + 1);

  Step now(p, start), next = now;
  for (int i = 0; i < kRing - 1; ++i, next.advance(p))
    if (start + i < end) load_bricks<F, S>(p, next, ring + i * kBytes);
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
  next = now;
  for (int i = 0; i < kRing - 1; ++i, next.advance(p)) {
    if (start + i < end) load_x<F, S>(p, next, ring + i * kBytes);
    gpu::copy_commit();
  }

  float sum[S::kTiles][S::kColumnTiles][4] = {};
  int stage = 0;
  for (int step = start; step < end; ++step, now.advance(p)) {
    gpu::copy_wait<kRing - 2>();
    __syncthreads();  // the whole step has come, and the one before it has been used
    if (step + kRing - 1 < end) {
      uint8_t* to = ring + (stage == 0 ? kRing - 1 : stage - 1) * kBytes;
      load_bricks<F, S>(p, next, to);
      load_x<F, S>(p, next, to);
      next.advance(p);
    }
    gpu::copy_commit();
    const uint8_t* at = ring + stage * kBytes;
    const int first_block = column_warp * S::kColumnTiles * kBlocks;
    const auto* words = reinterpret_cast<const uint4*>(at + kPlanesAt<F, S>) + first_block * 32 + lane;
    const auto* sums = reinterpret_cast<const float2*>(at + kSumsAt<F, S>) + first_block * 4 + lane % 4;
    multiply<F>(
        sum, at + row_warp * S::kTiles * F::kBytes, lane,
        [&](int k32, int n) { return words[(n * kBlocks + k32) * 32]; },
        [&](int k32, int n) { return sums[(n * kBlocks + k32) * 4]; });
    stage = stage + 1 == kRing ? 0 : stage + 1;

    if (now.brick + 1 < p.bricks_per_tile && step + 1 < end) continue;
    const int area = now.row_area * p.n_column_areas + now.column_area;
    const bool whole = now.brick + 1 == p.bricks_per_tile && area * p.bricks_per_tile >= start;
    if (whole || gather_parts<S>(p, area, start, sum)) store_area<S>(p, now, row_warp, column_warp, sum);
#pragma unroll
    for (int i = 0; i < S::kValues; ++i) (&sum[0][0][0])[i] = 0;
  }
  gpu::copy_wait<0>();
}

// --- Launches ---

/// Calls f(shape) for the narrowest area that holds all columns, or the widest.
template <class Function>
auto with_shape(int64_t n_columns, const Function& f) {
  if (n_columns <= 16) return f(Columns16());
  if (n_columns <= 32) return f(Columns32());
  if (n_columns <= 64) return f(Columns64());
  return f(Columns128());
}

struct Launch {
  XPlan x;
  GemmPlan product;
  int64_t n_x_blocks;  ///< of the launch that makes planes
  int n_blocks;
  int64_t slots_at, words_at, sums_at, scales_at, scratch_bytes;
};

template <class F, class S>
Launch plan_launch(const BrickMatrix& w, const BrickCall& call, int planes) {
  expect(planes == 1 || planes == 2, "tensor_gemm: planes are one or two");
  Launch launch{};
  GemmPlan& p = launch.product;
  p.bricks = w.data.as<uint8_t>();
  p.n_tiles = int(w.n_tiles());
  p.bricks_per_tile = int(w.bricks_per_tile());
  p.n_tokens = call.n_tokens;
  constexpr int kAreaColumns = 8 * S::kAreaColumnTiles;
  p.n_column_areas = int(gpu::ceil_div(call.n_tokens * planes, kAreaColumns));
  const int64_t n_areas = gpu::ceil_div(p.n_tiles, kAreaTiles) * p.n_column_areas;
  expect(n_areas <= kCounters && n_areas * p.bricks_per_tile < INT32_MAX / 2, "tensor_gemm: too many rows");
  p.n_areas = int(n_areas);
  p.out = make_outputs(w, call);
  p.x.planes = planes;
  p.x.blocks = p.bricks_per_tile * kStepBlocks<F>;
  launch.x = {.n_tokens = call.n_tokens,
              .n_in = w.n_in,
              .x = call.x,
              .norm_weight = call.norm_weight,
              .norm_eps = call.norm_eps};
  const int blocks = call.n_blocks > 0 ? call.n_blocks : gpu::multiprocessors();
  launch.n_blocks = int(std::min<int64_t>(blocks, n_areas * p.bricks_per_tile));
  const int64_t n_columns = int64_t(p.n_column_areas) * kAreaColumns;
  launch.n_x_blocks = n_columns / planes;
  launch.slots_at = 4 * kCounters;
  launch.words_at = launch.slots_at + int64_t(launch.n_blocks) * 2 * S::kValues * kThreads * 4;
  launch.sums_at = launch.words_at + n_columns * p.x.blocks * 64;
  launch.scales_at = launch.sums_at + n_columns * p.x.blocks * 4;
  launch.scratch_bytes = launch.scales_at + 4 * call.n_tokens;
  return launch;
}

template <class F, class S>
void launch_product(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call, int planes,
                    const gpu::Buffer& scratch) {
  Launch launch = plan_launch<F, S>(w, call, planes);
  check_scratch(scratch, launch.scratch_bytes);
  auto* const base = scratch.as<uint8_t>();
  GemmPlan& p = launch.product;
  p.counters = scratch.as<uint32_t>();
  p.slots = reinterpret_cast<float*>(base + launch.slots_at);
  p.x.words = reinterpret_cast<uint4*>(base + launch.words_at);
  p.x.sums = reinterpret_cast<float*>(base + launch.sums_at);
  p.x.inverse_scale = reinterpret_cast<float*>(base + launch.scales_at);
  launch.x.to = p.x;
  gpu::launch("planes", planes_kernel<F::kBfloat>,
              {unsigned(launch.n_x_blocks), kPlanesThreads, 0, stream, call.overlap}, launch.x);
  constexpr size_t kBytes = size_t(kSteps<F, S>) * kStepBytes<F, S>;
  static_assert(kBytes <= kMostSharedBytes - 1024);
  gpu::allow_shared_bytes("shared memory of tensor_gemm", gemm_kernel<F, S>, kBytes);
  gpu::launch("tensor_gemm", gemm_kernel<F, S>, {unsigned(launch.n_blocks), kThreads, kBytes, stream, true}, p);
}

}  // namespace

int64_t tensor_gemm_scratch_bytes(const BrickMatrix& w, const BrickCall& call, int planes) {
  return with_format(w.format, [&](auto f) {
    return with_shape(call.n_tokens * planes,
                      [&](auto s) { return plan_launch<decltype(f), decltype(s)>(w, call, planes).scratch_bytes; });
  });
}

void device_tensor_gemm(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call, int planes,
                        const gpu::Buffer& scratch) {
  check_call(w, call);
  with_format(w.format, [&](auto f) {
    with_shape(call.n_tokens * planes,
               [&](auto s) { launch_product<decltype(f), decltype(s)>(stream, w, call, planes, scratch); });
  });
}

}  // namespace ridge
