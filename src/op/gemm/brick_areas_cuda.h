// Device code of GEMMs with weights in bricks: x in the order of B fragments, and bricks as
// areas_cuda.h takes them. For *.cu files only.
#pragma once

#include "op/gemm/wide_areas_cuda.h"
#include "op/gemv/brick_matmul_cuda.h"
#include "op/norm_rope/norm_guard_cuda.h"

namespace ridge::bricks {
namespace {

/// x as the GEMM reads it: words [column tile of 8][32 columns of k][lane] of 16 bytes, sums of x over 32 / kSums
/// columns of k [column tile][32 columns of k][kSums][8] (zero in the low plane's columns), and 1 / scale of
/// each token. Where area_columns is not 0 words are the image of wide_areas_cuda.h, of one plane, and there are no
/// sums.
struct PlanesOfX {
  uint4* words;
  float* sums;
  float* inverse_scale;
  int blocks;  ///< of 32 columns of k
  int planes;
  int area_columns;
};

struct XPlan {
  int n_tokens, n_in;
  const int32_t* columns;  ///< [blocks of the launch]: the slot of a column of groups, -1: none; or null: one a token
  int share;               ///< slots of a row of x
  const int32_t* n_areas;  ///< how many areas of `area_columns` columns there are
  int area_columns;
  const float* x;
  const float* norm_weight;
  float norm_eps;
  double one_by_n_in;
  bool pairs;  ///< x can be read two values at a time
  PlanesOfX to;
};

/// Eight values of a row of n, two and two as matmuls with weights have them; 0 behind its end. `pairs`: of n even and
/// a row that can be read two values at a time.
__device__ __forceinline__ void load_unit(const float* row, int unit, int n, bool pairs, float (&values)[8]) {
  const int k = unit / 4 * 32 + unit % 4 * 2;
#pragma unroll
  for (int e = 0; e < 8; e += 2) {
    const int at = k + 4 * e;
    float2 value = {0, 0};
    if (pairs) {
      if (at < n) value = *reinterpret_cast<const float2*>(row + at);
    } else {
      if (at < n) value.x = row[at];
      if (at + 1 < n) value.y = row[at + 1];
    }
    values[e] = value.x, values[e + 1] = value.y;
  }
}

constexpr int kPlanesThreads = 512;  // few tokens are few blocks, whose time is all latency

/// A block a token, and one for each column that only fills up an area. A thread takes eight values at a time,
/// the words of a lane.
template <class F>
__global__ void __launch_bounds__(kPlanesThreads) planes_kernel(const XPlan p) {
  constexpr int kUnits = 2;  // of a thread under way together
  __shared__ float largest_of[kPlanesThreads / 32];
  __shared__ double squares_of[kPlanesThreads / 32];
  gpu::let_next_grid_start();
  const int token = int(blockIdx.x), n_units = p.to.blocks * 4, lane = int(threadIdx.x) % 32;
  gpu::wait_for_previous_grid();
  bool exists = token < p.n_tokens;
  int64_t row = token;
  if (p.columns) {
    if (token >= *p.n_areas * p.area_columns) return;
    exists = p.columns[token] >= 0;
    row = exists ? p.columns[token] / p.share : 0;
  }
  const float* const x = p.x + row * p.n_in;

  float values[kUnits][8];
  double squares = 0;
  const auto load = [&](int from, bool count) {
    float weights[kUnits][8];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int unit = from + i * kPlanesThreads + int(threadIdx.x);
      load_unit(x, unit, exists ? p.n_in : 0, p.pairs, values[i]);
      if (p.norm_weight) load_unit(p.norm_weight, unit, exists ? p.n_in : 0, p.pairs, weights[i]);
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
    const auto mean = float(all * p.one_by_n_in + p.norm_eps);
    const float factor = p.norm_weight ? guarded_factor(mean, 1.0f / sqrtf(mean)) : 1.0f;
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
      if (p.to.area_columns > 0) {
        uint32_t of[4] = {high.x, high.y, high.z, high.w};
        areas::store_units(p.to.words, token, 4 * block, n_units, p.to.area_columns, of, unit < n_units);
        continue;
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

/// Bricks as wide areas take them: a weight is the f16 next to scale * code - min, min being an f16 too where the
/// format has minima. Scales of 16 and more become infinite.
template <class Format>
struct WideBricks {
  static constexpr int kBytes = Format::kBytes, kColumns = Format::kColumns;
  static constexpr int kGroups = Format::kScaleSteps == 0 ? 0 : 4 / Format::kScaleSteps;
  static constexpr bool kHasWords = Format::kScaleSteps == 0;  // fragments as they are
  /// Codes below the normal numbers of f16 are multiplied by this much first, which is exact: scales then have the room
  /// of f16.
  static constexpr float kFirst = Format::kUnit < 0x1p-12f ? 0x1p12f : 1.0f;
  struct ScaledCodes {
    typename Format::Codes codes;
    uint32_t scale[2][kGroups / 2 + 1], start[2][kGroups / 2 + 1];  // of two groups a word
  };
  using Codes = std::conditional_t<kHasWords, const uint4*, ScaledCodes>;

  __device__ static Codes load(const uint8_t* tile, int chunk, int lane) {
    if constexpr (kHasWords) {
      return Format::load(tile, chunk, lane);
    } else {
      Codes codes;
      codes.codes = Format::load(tile, chunk, lane);
      const auto scales = Format::scales(tile, chunk, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int g = 0; g < kGroups; g += 2) {
          constexpr float kLower = Format::kLower;
          const float by = half == 0 ? 1 : 1 / kLower, unit = 1 / (Format::kUnit * kFirst) * by;
          const float(&scale)[kGroups] = scales.scale[half];
          codes.scale[half][g / 2] = gpu::pack_f16(scale[g] * unit, scale[g + 1] * unit);
          if constexpr (Format::kHasStart) {
            constexpr float kZero = Format::kSumFactor / Format::kUnit;
            codes.start[half][g / 2] = gpu::pack_f16(scale[g] * kZero, scale[g + 1] * kZero);
          }
          if constexpr (Format::kHasMin)
            codes.start[half][g / 2] = gpu::pack_f16(-scales.min[half][g] * by, -scales.min[half][g + 1] * by);
        }
      return codes;
    }
  }
  __device__ static void fragments(const Codes& codes, int part, uint32_t (&a)[2][4]) {
#pragma unroll
    for (int k16 = 0; k16 < 2; ++k16) {
      const int step = 2 * part + k16;
      if constexpr (kHasWords) {
        const uint4 words = codes[32 * step];
        a[k16][0] = words.x, a[k16][1] = words.y, a[k16][2] = words.z, a[k16][3] = words.w;
      } else {
        const int g = step / Format::kScaleSteps;
        const auto both = [&](uint32_t pair) { return gpu::select_bytes(pair, pair, g % 2 == 0 ? 0x1010 : 0x3232); };
        constexpr uint32_t kBy = f16_of_power(kFirst) * 0x10001u, kMinusZero = 0x80008000u;
        constexpr bool kStarts = Format::kHasStart || Format::kHasMin;
        Format::fragment(codes.codes, step, a[k16]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t scale = both(codes.scale[half][g / 2]);
          const uint32_t start = kStarts ? both(codes.start[half][g / 2]) : kMinusZero;
#pragma unroll
          for (int i = half; i < 4; i += 2) {
            const uint32_t code = kFirst == 1 ? a[k16][i] : gpu::fma_f16x2(a[k16][i], kBy, kMinusZero);
            a[k16][i] = gpu::fma_f16x2(code, scale, start);
          }
        }
      }
    }
  }

 private:
  static constexpr uint32_t f16_of_power(float power) {
    int exponent = 15;
    for (float p = power; p > 1; p /= 2) ++exponent;
    return uint32_t(exponent) << 10;
  }
};

/// Bricks as areas of a shape take them.
template <class F, class S>
using BricksOf = std::conditional_t<areas::kIsWide<S>, WideBricks<F>, Bricks<F>>;

}  // namespace
}  // namespace ridge::bricks
