// Device code of GEMMs: how their work is cut, fed and summed. For *.cu files only.
//
// A block makes areas of rows times columns of the sums (columns: tokens, or planes of tokens). A step is the weights
// of the area's tiles of 16 rows over some columns of k, a format's brick, and x over the same k; both pass through a
// ring in shared memory. The steps of all areas are dealt out to the blocks in equal ranges; an area that several
// blocks share is finished by the last one to arrive, which adds the parts in the blocks' order.
//
// A kind of weights F has
//   Value                    of a sum: float or int
//   kBytes                   of a tile of one step
//   kBlocks                  x of a step in blocks: words [column tile of 8][block][lane] of 16 bytes
//   kSums                    sums of x that products with a block need: [column tile][block][kSums][8] floats
//   multiply(sum, tiles, lane, words(block, n), sums(block, n, i))   adds a step to a warp's sums
#pragma once

#include <algorithm>
#include <type_traits>

#include "gpu/tensor.h"

namespace ridge::areas {

inline constexpr int kThreads = 256;

/// How a block's eight warps share an area: kRowWarps times its rows, the rest its columns.
template <int kRowWarpsOf, int kTilesOf, int kColumnTilesOf>
struct Shape {
  static constexpr int kRowWarps = kRowWarpsOf, kColumnWarps = 8 / kRowWarps;
  static constexpr int kTiles = kTilesOf, kColumnTiles = kColumnTilesOf;  // of a warp
  static constexpr int kAreaTiles = kRowWarps * kTiles, kAreaColumnTiles = kColumnWarps * kColumnTiles;
  static constexpr int kAreaColumns = 8 * kAreaColumnTiles;
  static constexpr int kValues = kTiles * kColumnTiles * 4;  // sums of a thread
};

/// Columns of several matrices: all columns of an area belong to one expert, whose tiles lie behind those of the expert
/// before. How many areas there are is known on the device only.
struct Groups {
  const int32_t* n_column_areas;
  const int32_t* experts;  ///< of column areas
  const int32_t* columns;  ///< [column areas, S::kAreaColumns]: the slot of each, -1: none
  int64_t expert_bytes;
};

struct Plan {
  const uint8_t* tiles;  ///< [n_tiles][steps_per_area][F::kBytes]
  int n_tiles, steps_per_area;
  int n_column_areas, n_areas;
  int n_blocks;        ///< that have steps: those of the launch, and no more than there are steps
  bool whole;          ///< no area is shared
  int cluster = 1;     ///< blocks of a cluster, which share one area, where that is more than 1 (wide_areas_cuda.h)
  const uint4* words;  ///< of x
  const float* sums;
  int x_blocks;        ///< of a whole row of x
  uint32_t* counters;  ///< an area's, zero between launches
  void* slots;         ///< [block][the first of its areas, the last][S::kValues][kThreads] sums
  Groups groups;       ///< of a grouped GEMM; n_column_areas and n_areas are then the most there may be

  __device__ int n_steps() const { return n_areas * steps_per_area; }
  __device__ int first_step(int64_t block) const {
    if (cluster > 1) return int(block / cluster) * steps_per_area + int(block % cluster) * steps_per_area / cluster;
    return whole ? int(block * n_areas / n_blocks) * steps_per_area : int(block * n_steps() / n_blocks);
  }
};

/// The areas of n_tiles tiles times n_columns columns.
template <class F, class S>
Plan plan_areas(const void* tiles, int64_t n_tiles, int64_t steps_per_area, int64_t n_columns) {
  Plan p{};
  p.tiles = static_cast<const uint8_t*>(tiles);
  p.n_tiles = int(n_tiles);
  p.steps_per_area = int(steps_per_area);
  p.x_blocks = int(steps_per_area) * F::kBlocks;
  p.n_column_areas = int(gpu::ceil_div(n_columns, S::kAreaColumns));
  p.n_areas = int(gpu::ceil_div(n_tiles, S::kAreaTiles) * p.n_column_areas);
  return p;
}
/// Bytes of slots and of words of x.
template <class S>
int64_t slot_bytes(int n_blocks) {
  return int64_t(n_blocks) * 2 * S::kValues * kThreads * 4;
}
template <class S>
int64_t word_bytes(const Plan& p) {
  return int64_t(p.n_column_areas) * S::kAreaColumnTiles * p.x_blocks * 512;
}

/// A step, counted up without divisions: areas of the same rows follow one another, of groups those of the same
/// columns, which are the ones that read the same x.
template <bool kGrouped>
struct Step {
  int brick, minor, major;

  __device__ static int n_minor(const Plan& p) { return kGrouped ? p.n_areas / p.n_column_areas : p.n_column_areas; }
  __device__ Step(const Plan& p, int step)
      : brick(step % p.steps_per_area),
        minor(step / p.steps_per_area % n_minor(p)),
        major(step / p.steps_per_area / n_minor(p)) {}
  __device__ int column_area() const { return kGrouped ? major : minor; }
  __device__ int row_area() const { return kGrouped ? minor : major; }
  __device__ int area(const Plan& p) const { return major * n_minor(p) + minor; }
  __device__ void advance(const Plan& p) {
    if (++brick < p.steps_per_area) return;
    brick = 0;
    if (++minor < n_minor(p)) return;
    minor = 0;
    ++major;
  }
};

/// A step in shared memory: tiles, words of x, sums of x.
template <class F, class S>
constexpr int kWordsAt = S::kAreaTiles* F::kBytes;
template <class F, class S>
constexpr int kSumsAt = kWordsAt<F, S> + S::kAreaColumnTiles* F::kBlocks * 512;
template <class F, class S>
constexpr int kStepBytes = kSumsAt<F, S> + S::kAreaColumnTiles* F::kBlocks* F::kSums * 32;
/// Steps of the ring on a device whose blocks have kMost bytes, some of them static.
template <class F, class S, int kMost>
constexpr int kSteps = std::clamp((kMost - 1024) / kStepBytes<F, S>, 2, 6);
template <class F, class S, int kMost>
constexpr bool kFits = 2 * kStepBytes<F, S> <= kMost - 1024;
/// On Hopper more than half of what a multiprocessor has: blocks have equal shares, so two on one multiprocessor and
/// none on another, which happens while kernels overlap, take twice the time.
template <class F, class S, int kMost>
constexpr size_t kSharedBytes = std::max(kSteps<F, S, kMost>* kStepBytes<F, S>,
                                         kMost == gpu::kHopperSharedBytes ? 115 << 10 : 0);

/// The first of some shapes whose ring fits.
template <class F, int kMost, class S, class... Others>
struct FirstThatFits {
  using Shape = typename FirstThatFits<F, kMost, Others...>::Shape;
};
template <class F, int kMost, class S, class... Others>
requires kFits<F, S, kMost>
struct FirstThatFits<F, kMost, S, Others...> {
  using Shape = S;
};

/// Calls f(bytes) for the memory that kernels of this device are made for: an integral constant.
template <class Function>
auto with_most_bytes(const Function& f) {
#ifdef __HIP__
  return f(std::integral_constant<int, gpu::kAmdSharedBytes>());
#else
  const int most = gpu::most_shared_bytes();
  if (most >= gpu::kHopperSharedBytes) return f(std::integral_constant<int, gpu::kHopperSharedBytes>());
#ifndef __CUDACC__  // an emulator of either
  if (most < gpu::kAmpereSharedBytes) return f(std::integral_constant<int, gpu::kAmdSharedBytes>());
#endif
  return f(std::integral_constant<int, gpu::kAmpereSharedBytes>());
#endif
}

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

template <class F, class S, bool kGrouped>
__device__ void load_tiles(const Plan& p, const Step<kGrouped>& step, uint8_t* to) {
  const int tile = step.row_area() * S::kAreaTiles, n_tiles = p.n_tiles - tile;
  const uint8_t* from = p.tiles + (int64_t(tile) * p.steps_per_area + step.brick) * F::kBytes;
  if constexpr (kGrouped) from += p.groups.experts[step.column_area()] * p.groups.expert_bytes;
  copy_pieces<F::kBytes, S::kAreaTiles>(to, from, int64_t(p.steps_per_area) * F::kBytes, n_tiles);
}
template <class F, class S, bool kGrouped>
__device__ void load_x(const Plan& p, const Step<kGrouped>& step, uint8_t* to) {
  constexpr int kBlocks = F::kBlocks, kTiles = S::kAreaColumnTiles;
  const int64_t block = int64_t(step.column_area()) * kTiles * p.x_blocks + step.brick * kBlocks;
  copy_pieces<kBlocks * 512, kTiles>(to + kWordsAt<F, S>, reinterpret_cast<const uint8_t*>(p.words + block * 32),
                                     int64_t(p.x_blocks) * 512, kTiles);
  if constexpr (F::kSums > 0)
    copy_pieces<kBlocks * F::kSums * 32, kTiles>(to + kSumsAt<F, S>,
                                                 reinterpret_cast<const uint8_t*>(p.sums + block * F::kSums * 8),
                                                 int64_t(p.x_blocks) * F::kSums * 32, kTiles);
}

/// Whether this block is to finish an area of which others have summed parts; `sum` is then the whole. sync() is a
/// barrier of the kThreads threads that call.
template <class S, class Value, class Sync>
__device__ bool gather_parts(const Plan& p, int area, int start, Value (&sum)[S::kTiles][S::kColumnTiles][4],
                             const Sync& sync) {
  const int n_steps = p.n_steps(), first = area * p.steps_per_area, last = first + p.steps_per_area - 1;
  const auto owner = [&](int step) { return int((int64_t(step + 1) * p.n_blocks - 1) / n_steps); };
  const auto slot = [&](int64_t block, bool is_first_area) {
    return static_cast<Value*>(p.slots) + (block * 2 + (is_first_area ? 0 : 1)) * S::kValues * kThreads + threadIdx.x;
  };
  Value* values = &sum[0][0][0];
  Value* mine = slot(blockIdx.x, start / p.steps_per_area == area);
#pragma unroll
  for (int i = 0; i < S::kValues; ++i) mine[i * kThreads] = values[i];
  __threadfence();
  sync();
  __shared__ bool is_last;
  const int first_block = owner(first), last_block = owner(last);
  if (threadIdx.x == 0) {
    is_last = atomicAdd(p.counters + area, 1u) == unsigned(last_block - first_block);
    if (is_last) p.counters[area] = 0;
  }
  sync();
  if (!is_last) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < S::kValues; ++i) values[i] = 0;
  const bool starts_here = p.first_step(first_block) >= first;  // as all blocks behind it do
#pragma unroll(S::kValues <= 8 ? 4 : S::kValues <= 16 ? 2 : 1)
  for (int block = first_block; block <= last_block; ++block) {
    const Value* part = slot(block, block > first_block || starts_here);
#pragma unroll
    for (int i = 0; i < S::kValues; ++i) values[i] += __ldcg(part + i * kThreads);
  }
  return true;
}

// --- Results ---

inline constexpr int kMostParts = 4;

/// Where finished sums go. Rows of the weights are those of parts, one after another, each from a row of its own on.
/// Paired: one part, rows r and r + 8 of a tile are gate and up of one output.
struct Outputs {
  int n_parts;
  int64_t first_row[kMostParts];
  int64_t n_out[kMostParts];      ///< rows of a part; those up to the next part's first are padding
  const float* bias[kMostParts];  ///< of a part; may be null
  float* y[kMostParts];           ///< [n_tokens, n_out]
  int64_t n_tokens;
  int planes;              ///< columns of a token, whose sums are added
  const float* factors;    ///< [n_tokens]
  const float* row_scale;  ///< of the weights' rows; may be null
  bool paired, residual, relu2;
};

/// A row of the weights as an output: null where there is none.
struct OutputRow {
  float* y;  ///< of a token
  int pitch;
  float bias;  ///< -0 where there is none: adding it changes nothing
  float scale;
};

inline __device__ OutputRow output_row(const Outputs& out, int64_t row, int64_t token) {
  OutputRow r = {};
  int part = 0;
#pragma unroll
  for (int i = 1; i < kMostParts; ++i)
    if (i < out.n_parts && row >= out.first_row[i]) part = i;
  const int64_t at = row - out.first_row[part];
  if (at >= out.n_out[part]) return r;
  r.pitch = int(out.n_out[part]);
  r.y = out.y[part] + token * r.pitch + at;
  r.bias = out.bias[part] ? out.bias[part][at] : -0.0f;
  return r;
}

/// silu of a result. Of float sums, which are rounded more than these functions are; integer sums are exact.
template <class Value>
__device__ float silu_of_sum(float x) {
  if constexpr (std::is_same_v<Value, float>) return __fdividef(x, 1.0f + __expf(-x));
  else return x / (1.0f + expf(-x));
}

/// Stores a warp's sums of tiles first_tile .. and columns first_column .., which are used up. product(sum, half,
/// factor, row's scale) is the value of a row in the upper (0) or lower half of its tile. One tile after the other
/// moves to the front: indices of registers are constants, and the code of a store is not there once for each tile. All
/// that a tile reads is asked for before anything is written.
template <class Value, int kTiles, int kColumnTiles, class Product>
__device__ void store_sums(const Outputs& out, int n_tiles, int first_tile, int64_t first_column,
                           Value (&sum)[kTiles][kColumnTiles][4], const Product& product) {
  constexpr int kAtOnce = std::min(4, kColumnTiles);  // column tiles whose inputs are asked for together
  const int lane = int(threadIdx.x) % 32, r = lane / 4, c = lane % 4;
  const int per_tile = out.planes == 2 ? 4 : 8, n_mine = out.planes == 2 ? 1 : 2;  // tokens of eight columns, of a lane
  const int64_t first_token = first_column / out.planes + c * n_mine;
  const int n_tokens = int(min(out.n_tokens - first_token, int64_t(1) << 20));  // from there on
  const auto exists = [&](int n, int i) { return i < n_mine && n * per_tile + i < n_tokens; };
#pragma unroll 1
  for (int64_t tile = first_tile; tile < first_tile + kTiles && tile < n_tiles; ++tile) {
    OutputRow rows[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rows[half] = output_row(out, out.paired ? tile * 8 + r : tile * 16 + r + 8 * half, first_token);
      rows[half].scale = out.row_scale ? out.row_scale[tile * 16 + r + 8 * half] : 1.0f;
    }
    float factors[kAtOnce][2], y[kAtOnce][2][2];
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      if (n % kAtOnce == 0)
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            factors[k][i] = exists(n + k, i) ? out.factors[first_token + (n + k) * per_tile + i] : 0.0f;
#pragma unroll
            for (int half = 0; half < 2; ++half)
              y[k][i][half] = out.residual && exists(n + k, i) && rows[half].y
                                  ? rows[half].y[int64_t((n + k) * per_tile + i) * rows[half].pitch]
                                  : 0.0f;
          }
      Value(&d)[4] = sum[0][n];
      if (out.planes == 2) d[0] += d[1], d[2] += d[3];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float values[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
          values[half] = product(d[2 * half + i], half, factors[n % kAtOnce][i], rows[half].scale);
        if (out.paired) {
          float gate = values[0] < 0 ? 0 : values[0];  // keeps NaN
          if (out.relu2) gate = __fmul_rn(gate, gate);
          else gate = silu_of_sum<Value>(values[0]);
          values[0] = __fmul_rn(gate, values[1]);
        } else {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            values[half] = __fadd_rn(values[half], rows[half].bias);
            if (out.residual) values[half] = __fadd_rn(y[n % kAtOnce][i][half], values[half]);
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (exists(n, i) && rows[half].y && !(out.paired && half == 1))
            rows[half].y[int64_t(n * per_tile + i) * rows[half].pitch] = values[half];
      }
    }
#pragma unroll
    for (int to = 0; to + 1 < kTiles; ++to)
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[to][n][i] = sum[to + 1][n][i];
  }
}

/// The areas that a step's groups have, and whether this block has some of them.
inline __device__ bool take_groups(Plan& p) {
  p.n_areas = p.n_areas / p.n_column_areas * *p.groups.n_column_areas;
  p.n_column_areas = *p.groups.n_column_areas;
  p.n_blocks = min(p.n_blocks, p.n_steps());
  return int(blockIdx.x) < p.n_blocks;
}

/// Runs a block's share of the areas. store(step, first_tile, first_column, sum) takes a warp's sums of an area that is
/// complete, and may use them up.
template <class F, class S, int kMost, bool kGrouped, class Store>
__device__ void run_areas(const Plan& of, const Store& store) {
  using Step = areas::Step<kGrouped>;
  Plan p = of;
  p.n_blocks = int(gridDim.x);
  if constexpr (kGrouped) {
    gpu::let_next_grid_start();
    gpu::wait_for_previous_grid();
    if (!take_groups(p)) return;
  }
  constexpr int kRing = kSteps<F, S, kMost>, kBlocks = F::kBlocks, kBytes = kStepBytes<F, S>;
  auto* const ring = gpu::dynamic_shared<uint8_t>();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int row_warp = warp / S::kColumnWarps, column_warp = warp % S::kColumnWarps;
  const int start = p.first_step(blockIdx.x), end = p.first_step(blockIdx.x + 1);

  Step now(p, start), next = now;
  for (int i = 0; i < kRing - 1; ++i, next.advance(p))
    if (start + i < end) load_tiles<F, S>(p, next, ring + i * kBytes);
  if constexpr (!kGrouped) {
    gpu::let_next_grid_start();
    gpu::wait_for_previous_grid();
  }
  next = now;
  for (int i = 0; i < kRing - 1; ++i, next.advance(p)) {
    if (start + i < end) load_x<F, S>(p, next, ring + i * kBytes);
    gpu::copy_commit();
  }

  typename F::Value sum[S::kTiles][S::kColumnTiles][4] = {};
  int stage = 0;
  for (int step = start; step < end; ++step, now.advance(p)) {
    gpu::copy_wait<kRing - 2>();
    __syncthreads();  // the whole step has come, and the one before it has been used
    if (step + kRing - 1 < end) {
      uint8_t* to = ring + (stage == 0 ? kRing - 1 : stage - 1) * kBytes;
      load_tiles<F, S>(p, next, to);
      load_x<F, S>(p, next, to);
      next.advance(p);
    }
    gpu::copy_commit();
    const uint8_t* at = ring + stage * kBytes;
    const int first_block = column_warp * S::kColumnTiles * kBlocks;
    const auto* words = reinterpret_cast<const uint4*>(at + kWordsAt<F, S>) + first_block * 32 + lane;
    const auto* sums = reinterpret_cast<const float2*>(at + kSumsAt<F, S>) + first_block * F::kSums * 4 + lane % 4;
    F::multiply(
        sum, at + row_warp * S::kTiles * F::kBytes, lane,
        [&](int block, int n) { return words[(n * kBlocks + block) * 32]; },
        [&](int block, int n, int i) { return sums[((n * kBlocks + block) * F::kSums + i) * 4]; });
    stage = stage + 1 == kRing ? 0 : stage + 1;

    if (now.brick + 1 < p.steps_per_area && step + 1 < end) continue;
    const int area = now.area(p);
    const bool whole = now.brick + 1 == p.steps_per_area && area * p.steps_per_area >= start;
    if (whole || gather_parts<S>(p, area, start, sum, [] { __syncthreads(); })) {
      const int first_tile = now.row_area() * S::kAreaTiles + row_warp * S::kTiles;
      const int first_column = 8 * (now.column_area() * S::kAreaColumnTiles + column_warp * S::kColumnTiles);
      store(now, first_tile, first_column, sum);
    }
#pragma unroll
    for (int i = 0; i < S::kValues; ++i) (&sum[0][0][0])[i] = 0;
  }
  gpu::copy_wait<0>();
}

/// The areas of one matrix; product as store_sums() takes it.
template <class F, class S, int kMost, class Product>
__device__ void run(const Plan& p, const Outputs& out, const Product& product) {
  run_areas<F, S, kMost, false>(p, [&](const Step<false>&, int first_tile, int first_column, auto& sum) {
    store_sums(out, p.n_tiles, first_tile, first_column, sum, product);
  });
}

}  // namespace ridge::areas
