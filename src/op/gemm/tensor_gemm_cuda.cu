#include "op/gemm/tensor_gemm_cuda.h"

#include <algorithm>

#include "op/gemm/areas_cuda.h"
#include "op/gemv/brick_product_cuda.h"

namespace ridge {
namespace {

using namespace bricks;

// Two launches. The first writes the planes of x in the order of B fragments, the second multiplies (areas_cuda.h).

constexpr int kThreads = areas::kThreads;

// --- Planes of x ---

/// x as the product reads it: words [column tile of 8][32 columns of k][lane] of 16 bytes, sums of x over 32 / kSums
/// columns of k [column tile][32 columns of k][kSums][8] (zero in the low plane's columns), and 1 / scale of
/// each token.
struct PlanesOfX {
  uint4* words;
  float* sums;
  float* inverse_scale;
  int blocks;  ///< of 32 columns of k
  int planes;
};

struct XPlan {
  int n_tokens, n_in;
  const float* x;
  const float* norm_weight;
  float norm_eps;
  double one_by_n_in;
  bool pairs;  ///< x can be read two values at a time
  PlanesOfX to;
};

constexpr int kPlanesThreads = 512;  // few tokens are few blocks, whose time is all latency

/// A block a token, and one for each column that only fills up the last area. A thread takes eight values at a time,
/// the words of a lane.
template <class F>
__global__ void __launch_bounds__(kPlanesThreads) planes_kernel(const XPlan p) {
  constexpr int kUnits = 2;  // of a thread under way together
  __shared__ float largest_of[kPlanesThreads / 32];
  __shared__ double squares_of[kPlanesThreads / 32];
  gpu::let_next_grid_start();
  const int token = int(blockIdx.x), n_units = p.to.blocks * 4, lane = int(threadIdx.x) % 32;
  const bool exists = token < p.n_tokens;
  const float* const x = p.x + int64_t(token) * p.n_in;
  gpu::wait_for_previous_grid();

  float values[kUnits][8];
  double squares = 0;
  const auto load = [&](int from, bool count) {
    float weights[kUnits][8];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int unit = from + i * kPlanesThreads + int(threadIdx.x), k = unit / 4 * 32 + unit % 4 * 2;
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const int at = k + 4 * e;
        const bool first = exists && at < p.n_in, second = exists && at + 1 < p.n_in;
        float2 value = {0, 0}, weight = {1, 1};
        if (p.pairs) {
          if (first) value = *reinterpret_cast<const float2*>(x + at);
          if (first && p.norm_weight) weight = *reinterpret_cast<const float2*>(p.norm_weight + at);
        } else {
          if (first) value.x = x[at];
          if (second) value.y = x[at + 1];
          if (first && p.norm_weight) weight.x = p.norm_weight[at];
          if (second && p.norm_weight) weight.y = p.norm_weight[at + 1];
        }
        values[i][e] = value.x, values[i][e + 1] = value.y;
        weights[i][e] = weight.x, weights[i][e + 1] = weight.y;
      }
    }
    if (!p.norm_weight) return;
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (count) squares += double(values[i][e]) * values[i][e];
        values[i][e] *= weights[i][e];
      }
  };
  float largest = 0;
  for (int from = 0; from < n_units; from += kUnits * kPlanesThreads) {
    load(from, true);
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
#pragma unroll
      for (int e = 0; e < 8; ++e) largest = fmaxf(largest, fabsf(values[i][e]));
  }
  largest = gpu::warp_max(largest);
  if (p.norm_weight) squares = gpu::warp_sum(squares);
  if (lane == 0) largest_of[threadIdx.x / 32] = largest, squares_of[threadIdx.x / 32] = squares;
  __syncthreads();
  for (const float part : largest_of) largest = fmaxf(largest, part);
  const float scale = plane_scale(largest);
  if (exists && threadIdx.x == 0) {
    double all = 0;
    for (const double part : squares_of) all += part;
    const float factor = p.norm_weight ? 1.0f / sqrtf(float(all * p.one_by_n_in + p.norm_eps)) : 1.0f;
    p.to.inverse_scale[token] = factor / scale;
  }

  const int column = token * p.to.planes;
  uint4* const words = p.to.words + int64_t(column / 8) * p.to.blocks * 32 + column % 8 * 4;
  float* const sums = p.to.sums + int64_t(column / 8) * p.to.blocks * F::kSums * 8 + column % 8;
  for (int from = 0; from < n_units; from += kUnits * kPlanesThreads) {
    if (n_units > kUnits * kPlanesThreads) load(from, false);  // or they are there still
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int unit = from + i * kPlanesThreads + int(threadIdx.x), block = unit / 4, c = unit % 4;
      uint4 high, low;
      float2 halves = split_values<F::kBfloat>(values[i], scale, high, low);
      // Sums of one plane are of what it holds: a code's zero-point meets the same x as the code.
      if (p.to.planes == 1) halves = {plane_sum<F::kBfloat>(high.x, high.y), plane_sum<F::kBfloat>(high.z, high.w)};
      float of_x[2] = {F::kSums == 2 ? halves.x : halves.x + halves.y, halves.y};
#pragma unroll
      for (int j = 0; j < F::kSums; ++j) {
        of_x[j] += __shfl_xor_sync(gpu::kAllLanes, of_x[j], 1);
        of_x[j] += __shfl_xor_sync(gpu::kAllLanes, of_x[j], 2);
      }
      if (unit >= n_units) continue;
      words[block * 32 + c] = high;
      if (p.to.planes == 2) words[block * 32 + 4 + c] = low;
#pragma unroll
      for (int j = 0; j < F::kSums; ++j) {
        if (c != j) continue;
        sums[(block * F::kSums + j) * 8] = of_x[j] * F::kSumFactor;
        if (p.to.planes == 2) sums[(block * F::kSums + j) * 8 + 1] = 0;
      }
    }
  }
}

// --- The product ---

/// Areas of 128 rows, or of 256.
template <int kTiles>
struct Shapes {
  using Columns16 = areas::Shape<8, kTiles, 2>;
  using Columns32 = areas::Shape<8, kTiles, 4>;
  using Columns64 = areas::Shape<8, kTiles, 8>;
};
using Columns128 = areas::Shape<4, 2, 8>;

/// Bricks as areas take them.
template <class Format>
struct Bricks {
  using Value = float;
  static constexpr int kBytes = Format::kBytes, kBlocks = Format::kColumns / 32;
  static constexpr int kSums = Format::kSums;

  template <int kTiles, int kColumnTiles, class Words, class Sums>
  __device__ static void multiply(float (&sum)[kTiles][kColumnTiles][4], const uint8_t* tiles, int lane,
                                  const Words& words, const Sums& sums) {
    bricks::multiply<Format>(sum, tiles, lane, words, [&](int k32, int n, int i) {
      const float2 of_x = sums(k32, n, i);
      if constexpr (Format::kHasStart) {
        constexpr float kLower = Format::kLower;
        return float4{of_x.x, of_x.y, kLower * of_x.x, kLower * of_x.y};
      } else {
        return of_x;
      }
    });
  }
};

struct GemmPlan {
  areas::Plan areas;
  areas::Outputs out;
};

template <class F, class S>
__global__ void __launch_bounds__(kThreads, 1) gemm_kernel(const GemmPlan p) {
  areas::run<Bricks<F>, S>(p.areas, p.out, [](float sum, int half, float factor, float) {
    return sum * (half == 0 ? 1 / F::kUnit : 1 / F::kUnit / F::kLower) * factor;
  });
}

areas::Outputs make_area_outputs(const BrickMatrix& w, const BrickCall& call, int planes) {
  areas::Outputs out{.n_parts = w.n_parts};
  for (int i = 0; i < w.n_parts; ++i) {
    out.first_row[i] = w.first_tile(i) * w.rows_per_tile();
    out.n_out[i] = w.n_out[i];
    out.bias[i] = call.bias[i];
    out.y[i] = call.y[i];
  }
  out.n_tokens = call.n_tokens;
  out.planes = planes;
  out.paired = w.paired;
  out.residual = call.residual;
  out.relu2 = call.glu == BrickGlu::relu2;
  return out;
}

// --- Launches ---

int blocks_of(const BrickCall& call) { return call.n_blocks > 0 ? call.n_blocks : gpu::multiprocessors(); }

/// Calls f(shape) for the narrowest area that holds all columns, or the widest. Every area reads all of x once more, so
/// areas are higher where x is much of what a block reads, and not where the sums of many blocks must be added.
template <class Function>
auto with_shape(const BrickMatrix& w, const BrickCall& call, int planes, const Function& f) {
  const int64_t n_columns = call.n_tokens * planes;
  if (n_columns > 64) return f(Columns128());
  const auto narrowest = [&](auto shapes) {
    using S = decltype(shapes);
    if (n_columns <= 16) return f(typename S::Columns16());
    if (n_columns <= 32) return f(typename S::Columns32());
    return f(typename S::Columns64());
  };
  const int64_t x_bytes = gpu::ceil_div(w.n_tiles(), 8) * w.n_in * n_columns * 2;  // in areas of 128 rows
  return x_bytes / blocks_of(call) < 256 << 10 ? narrowest(Shapes<1>()) : narrowest(Shapes<2>());
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
  const int64_t n_areas =
      gpu::ceil_div(w.n_tiles(), S::kAreaTiles) * gpu::ceil_div(call.n_tokens * planes, S::kAreaColumns);
  expect(n_areas <= kCounters && n_areas * w.bricks_per_tile() < INT32_MAX / 2, "tensor_gemm: too many rows");
  p.areas =
      areas::plan_areas<Bricks<F>, S>(w.data.as<void>(), w.n_tiles(), w.bricks_per_tile(), call.n_tokens * planes);
  p.out = make_area_outputs(w, call, planes);
  launch.x = {.n_tokens = int(call.n_tokens),
              .n_in = int(w.n_in),
              .x = call.x,
              .norm_weight = call.norm_weight,
              .norm_eps = call.norm_eps,
              .one_by_n_in = 1.0 / double(w.n_in),
              .pairs = readable_in_pairs(w, call)};
  launch.n_blocks = int(std::min<int64_t>(blocks_of(call), n_areas * w.bricks_per_tile()));
  const int64_t n_columns = int64_t(p.areas.n_column_areas) * S::kAreaColumns;
  launch.n_x_blocks = n_columns / planes;
  launch.slots_at = 4 * kCounters;
  launch.words_at = launch.slots_at + areas::slot_bytes<S>(launch.n_blocks);
  launch.sums_at = launch.words_at + areas::word_bytes<S>(p.areas);
  launch.scales_at = launch.sums_at + n_columns * p.areas.x_blocks * F::kSums * 4;
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
  launch.x.to = {.words = reinterpret_cast<uint4*>(base + launch.words_at),
                 .sums = reinterpret_cast<float*>(base + launch.sums_at),
                 .inverse_scale = reinterpret_cast<float*>(base + launch.scales_at),
                 .blocks = p.areas.x_blocks,
                 .planes = planes};
  p.areas.counters = scratch.as<uint32_t>();
  p.areas.slots = base + launch.slots_at;
  p.areas.words = launch.x.to.words;
  p.areas.sums = launch.x.to.sums;
  p.out.factors = launch.x.to.inverse_scale;
  gpu::launch("planes", planes_kernel<F>, {unsigned(launch.n_x_blocks), kPlanesThreads, 0, stream, call.overlap},
              launch.x);
  constexpr size_t kBytes = areas::kSharedBytes<Bricks<F>, S>;
  static_assert(kBytes <= gpu::kHopperSharedBytes - 1024);
  const auto kernel = gemm_kernel<F, S>;
  gpu::allow_shared_bytes("shared memory of tensor_gemm", kernel, kBytes);
  gpu::launch("tensor_gemm", kernel, {unsigned(launch.n_blocks), kThreads, kBytes, stream, true}, p);
}

}  // namespace

int64_t tensor_gemm_scratch_bytes(const BrickMatrix& w, const BrickCall& call, int planes) {
  return with_format(w.format, [&](auto f) {
    return with_shape(w, call, planes,
                      [&](auto s) { return plan_launch<decltype(f), decltype(s)>(w, call, planes).scratch_bytes; });
  });
}

void device_tensor_gemm(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call, int planes,
                        const gpu::Buffer& scratch) {
  check_call(w, call);
  with_format(w.format, [&](auto f) {
    with_shape(w, call, planes,
               [&](auto s) { launch_product<decltype(f), decltype(s)>(stream, w, call, planes, scratch); });
  });
}

int64_t brick_scratch_bytes(const BrickMatrix& w, const BrickCall& call) {
  return call.n_tokens > kMostFewTokens ? tensor_gemm_scratch_bytes(w, call, 2) : 0;
}

void device_half_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call,
                      const gpu::Buffer& scratch) {
  if (call.n_tokens > kMostFewTokens) device_tensor_gemm(stream, w, call, 2, scratch);
  else device_few_half_gemv(stream, w, call);
}

}  // namespace ridge
