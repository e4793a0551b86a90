// Rotor rows coded by a block, a warp a row: the host's operations on every element in the host's order
// (format/kv_rotor.h, format/weighted_rounding.h), spread over the lanes. Device code for *_exact.cu.
//
// Weighted rounding in three steps:
//   * Matmuls with the metric of all rows together: a warp holds four vectors and half the channels, so that what it
//     reads of the metric meets four of them.
//   * The descent, a warp a row, lane = channel of a block of 32. All lanes say at once where their code would move
//     given the residual as it is. None before the first that would is touched by a change, so that one is the next
//     change of the host's sequence: it is applied to the residual, and the lanes behind it say again. About 25 changes
//     a row of 128 stand for 256 steps of the host.
//   * Sums in double whose order matters: the terms side by side, then one lane a sum.
#pragma once

#include "format/kv_rotor.h"
#include "gpu/tensor.h"
#include "op/cache/tile_order.h"

namespace ridge {

/// Rows of a block: half a tile.
inline constexpr int kRotorRows = kTilePositions / 2;
inline constexpr int kRotorThreads = 32 * kRotorRows;

/// Shared memory of a block. Behind it lies the metric of a kv head of up to 128 channels; a larger one has no room.
template <int kPer>
struct alignas(16) RotorScratch {
  static constexpr int kDim = 32 * kPer;
  static constexpr int kMetricBytes = kPer <= 4 ? 4 * kDim * kDim : 0;
  float vectors[2 * kRotorRows][kDim];  ///< of each row u and its error; then the metric times them
  float inverse[kDim];                  ///< of the metric's diagonal
  double terms[kRotorRows][3][34];      ///< of three sums; padded: lanes that add meet different banks
  uint8_t codes[kRotorRows][kDim + 4];  ///< padded as well

  __device__ float* near_metric() { return reinterpret_cast<float*>(this + 1); }
};

/// Workspace with which a warp codes a row: room in shared memory, and the metric where codes are weighted.
template <int kPer>
struct RotorWork {
  double (&terms)[3][34];
  float (*vectors)[32 * kPer];     ///< [2]: u and its error; then the metric times them
  const float* inverse = nullptr;  ///< of the metric's diagonal
  const float* metric = nullptr;   ///< [kDim, kDim]; null: nearest rounding
};

template <int kBits>
struct Rotor {
  static constexpr LevelTable<kBits> kLevels = LloydMax<kBits>::kLevels;
  static constexpr int kHalf = kLevels.kCount / 2;

  static constexpr bool mirrored() {
    for (int i = 0; i < kHalf; ++i)
      if (kLevels.at[i] != -kLevels.at[2 * kHalf - 1 - i]) return false;
    return true;
  }
  static_assert(mirrored(), "sizes of levels stand for both halves");

  /// A number that reaches bits_of_border() exactly where |x| is on the outer side. Floats that are not negative have
  /// the order of their bits; a value on a border goes up, which is inwards below zero. x is not -0.
  __device__ static int outwards(float x) {
    const int bits = __float_as_int(x);
    return (bits + (bits >> 31)) & 0x7FFFFFFF;
  }
  __device__ static int bits_of_border(int i) {
    constexpr LevelTable<kBits> levels = kLevels;
    return __float_as_int(0.5f * (levels.at[kHalf + i] + levels.at[kHalf + i + 1]));
  }
  /// The level nearest to x: the host's code of x, which is no NaN.
  __device__ static float nearest(float x) {
    constexpr LevelTable<kBits> levels = kLevels;
    const int out = outwards(x);
    float size = levels.at[kHalf];
#pragma unroll
    for (int i = 0; i + 1 < kHalf; ++i) size = out >= bits_of_border(i) ? levels.at[kHalf + i + 1] : size;
    return copysignf(size, x);
  }
  __device__ static int code(float level) {
    const int out = outwards(level);
    int size = 0;
#pragma unroll
    for (int i = 0; i + 1 < kHalf; ++i) size += out >= bits_of_border(i);
    return level < 0 ? kHalf - 1 - size : kHalf + size;
  }
};

/// a / b correctly rounded, given the correctly rounded 1 / b: twice a correction by the exact remainder (Markstein).
/// The metric's entries are within kMostMetric, its diagonal not below 1 / kMostMetric: nothing overflows, as |a| stays
/// below 2^60. Where a is below 2^-100, so that a remainder may not be exact, the result is below 2^-50: a level plus
/// that is the level, on either side.
__device__ __forceinline__ float quotient(float a, float b, float inverse) {
  const float first = a * inverse;
  const float close = __fmaf_rn(__fmaf_rn(-b, first, a), inverse, first);
  return __fmaf_rn(__fmaf_rn(-b, close, a), inverse, close);
}

/// Sums over the channels in their order: term(j, of_lane) gives the three terms of channel lane + 32 j. Sum s < kSums
/// is lane s's.
template <int kPer, int kSums, class Term>
__device__ __forceinline__ double ordered_sums(double (&scratch)[3][34], int lane, const Term& term) {
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    double of_lane[3];
    term(j, of_lane);
#pragma unroll
    for (int s = 0; s < kSums; ++s) scratch[s][lane] = of_lane[s];
    __syncwarp();
    if (lane < kSums) {
#pragma unroll 4
      for (int i = 0; i < 32; i += 2) {
        const double2 two = *reinterpret_cast<const double2*>(&scratch[lane][i]);
        sum += two.x;
        sum += two.y;
      }
    }
    __syncwarp();
  }
  return sum;
}

/// vectors [2] of a warp <- vectors times the metric. Every sum in the order of i.
template <int kPer>
__device__ __forceinline__ void times_metric_of_row(float (*vectors)[32 * kPer], const float* metric, int lane) {
  float sum[2][kPer] = {};
  __syncwarp();
#pragma unroll 4
  for (int i = 0; i < 32 * kPer; ++i) {
    const float x[2] = {vectors[0][i], vectors[1][i]};
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const float m = metric[i * 32 * kPer + lane + 32 * j];
#pragma unroll
      for (int v = 0; v < 2; ++v) sum[v][j] = sum[v][j] + x[v] * m;
    }
  }
  __syncwarp();
#pragma unroll
  for (int v = 0; v < 2; ++v)
#pragma unroll
    for (int j = 0; j < kPer; ++j) vectors[v][lane + 32 * j] = sum[v][j];
  __syncwarp();
}

/// vectors <- vectors times the metric, all of the block; all threads. Every sum in the order of i.
template <int kPer>
__device__ __forceinline__ void times_metric(float (&vectors)[2 * kRotorRows][32 * kPer], const float* metric) {
  constexpr int kDim = 32 * kPer, kCols = kPer / 2;
  struct alignas(4 * kCols) Columns {
    float at[kCols];
  };
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int first = warp / 2 * 4, column = warp % 2 * (kDim / 2) + kCols * lane;
  float sum[4][kCols] = {};
#pragma unroll 2
  for (int i = 0; i < kDim; i += 4) {
    float x[4][4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float4 four = *reinterpret_cast<const float4*>(&vectors[first + v][i]);
      x[v][0] = four.x, x[v][1] = four.y, x[v][2] = four.z, x[v][3] = four.w;
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const Columns m = *reinterpret_cast<const Columns*>(metric + (i + step) * kDim + column);
#pragma unroll
      for (int v = 0; v < 4; ++v)
#pragma unroll
        for (int c = 0; c < kCols; ++c) sum[v][c] = sum[v][c] + x[v][step] * m.at[c];
    }
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < 4; ++v)
#pragma unroll
    for (int c = 0; c < kCols; ++c) vectors[first + v][column + c] = sum[v][c];
  __syncthreads();
}

/// The passes of round_weighted(). Lane has channels lane + 32 j.
template <int kBits, int kPer>
__device__ __forceinline__ void descend(const float* metric, const float* inverse, int lane, float (&level)[kPer],
                                        float (&residual)[kPer]) {
  constexpr int kDim = 32 * kPer;
#pragma unroll 1
  for (int pass = 0; pass < kRoundingPasses; ++pass)
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const float* const rows = metric + 32 * j * kDim + lane;
      const float diagonal = rows[32 * j + lane * kDim], per = inverse[32 * j + lane];
      unsigned ahead = gpu::kAllLanes;
      for (;;) {
        const float best = Rotor<kBits>::nearest(level[j] + quotient(residual[j], diagonal, per));
        const unsigned moves = __ballot_sync(gpu::kAllLanes, best != level[j]) & ahead;
        if (moves == 0) break;
        const int mover = __ffs(int(moves)) - 1;
        const float change = __shfl_sync(gpu::kAllLanes, best - level[j], mover);
        if (lane == mover) level[j] = best;
        ahead = ~1u << mover;
#pragma unroll
        for (int k = 0; k < kPer; ++k) residual[k] = residual[k] - change * rows[mover * kDim + 32 * k];
      }
    }
}

/// RotorRow::encode of the row x, lane has channels lane + 32 j. Leaves the levels and returns the scale; adds what
/// saturated on this lane. multiply() takes the vectors times the metric: where a block does so for all its rows, all
/// its warps code rows under the same metric.
template <int kBits, int kPer, class Multiply>
__device__ __forceinline__ uint16_t encode_rotor(const RotorWork<kPer>& work, KvScale rule, const float (&x)[kPer],
                                                 float (&level)[kPer], int& saturated, const Multiply& multiply) {
  constexpr int kDim = 32 * kPer;
  const int lane = int(threadIdx.x) % 32;
  auto& terms = work.terms;
  float u[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) u[j] = saturate_f16(x[j], saturated);
  const auto square = [&](int j, double(&of_lane)[3]) { of_lane[0] = double(u[j]) * u[j]; };
  const double norm2 = __shfl_sync(gpu::kAllLanes, ordered_sums<kPer, 1>(terms, lane, square), 0);
  const float norm = float(sqrt(norm2));
  const float to_unit = norm > 0 ? sqrtf(float(kDim)) / norm : 0.0f;
#pragma unroll
  for (int j = 0; j < kPer; ++j) level[j] = Rotor<kBits>::nearest(u[j] * to_unit + 0.0f);  // -0 becomes 0

  double sum;  // lane 0: <x, x>; lane 1: <x, l>; lane 2: <l, l>
  if (work.metric) {
    float residual[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      u[j] *= to_unit;
      work.vectors[0][lane + 32 * j] = u[j];
      work.vectors[1][lane + 32 * j] = u[j] - level[j];
    }
    multiply();
#pragma unroll
    for (int j = 0; j < kPer; ++j) residual[j] = work.vectors[1][lane + 32 * j];
    descend<kBits, kPer>(work.metric, work.inverse, lane, level, residual);
    sum = ordered_sums<kPer, 3>(terms, lane, [&](int j, double(&of_lane)[3]) {
      const float pull = work.vectors[0][lane + 32 * j];
      of_lane[0] = double(pull) * u[j];
      of_lane[1] = double(level[j]) * pull;
      of_lane[2] = level[j] * (double(pull) - residual[j]);
    });
    const double back = to_unit > 0 ? 1.0 / to_unit : 0.0;
    if (lane == 0) sum *= back * back;
    if (lane == 1) sum *= back;
  } else {
    sum = ordered_sums<kPer, 3>(terms, lane, [&](int j, double(&of_lane)[3]) {
      of_lane[0] = double(u[j]) * u[j];
      of_lane[1] = double(level[j]) * u[j];
      of_lane[2] = double(level[j]) * level[j];
    });
  }
  typename RotorCodes<kBits>::Fit fit;
  fit.size2 = __shfl_sync(gpu::kAllLanes, sum, 0);
  fit.dot = __shfl_sync(gpu::kAllLanes, sum, 1);
  fit.levels2 = __shfl_sync(gpu::kAllLanes, sum, 2);
  int lost = 0;
  const uint16_t scale = f32_to_f16(saturate_f16(fit.scale(rule), lost));
  if (lane == 0) saturated += lost;
  return scale;
}

}  // namespace ridge
