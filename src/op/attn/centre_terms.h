// What scores lack because K is stored without its turning centre (op/cache/centre.h). Device code of decode attention.
#pragma once

#include "op/attn/tile_products.h"

namespace ridge::tiles {

/// Terms that scores lack because K is stored without its turning centre (centre.h): a query times the centre of a
/// tile. Tensor cores make those of eight units at a time: weights of the queries are the A operand, angles of a unit's
/// tile a column of B. Both stand in two planes of f16: a sum is off by at most 2^-20 of the sizes of its terms, and by
/// 2^-14 in all.
template <int kDim>
struct CentreTerms {
  static constexpr int kUnits = 8, kSteps = kDim / 16;
  static constexpr int kWeightBytes = 512 * kSteps;  ///< [step][lane][4 words] in shared memory
  static constexpr float kUnit = 16;                 ///< of a weight: sums beyond 2^20 powers of two are not expected
  float4 angles[kSteps];                             ///< of unit lane / 4: angles 16 s + 4 (lane % 4) .. + 3

  /// Weights of the query in row r, where the lane has those of angles kPer lane + j; beyond the pitch any.
  static __device__ __forceinline__ void put_weights(std::byte* weights, int r, const float (&x)[kDim / 32], int lane) {
    constexpr int kPer = kDim / 32;
    const auto weight = [&](int j) { return fminf(fmaxf(x[j] * (1 / kUnit), -65504.0f), 65504.0f); };
#pragma unroll
    for (int j = 0; j < kPer; j += 2) {
      const int d = kPer * lane + j;
      *reinterpret_cast<Words<2>*>(weights + (d / 16 * 32 + 4 * r + d % 16 / 4) * 16 + d % 4 / 2 * 8) =
          half_planes<false>(weight(j), weight(j + 1));
    }
  }
  /// Asks for the angles of a tile, the same in the lanes of a quarter.
  __device__ __forceinline__ void load(const CentreTurn& turn, int tile, int lane) {
    const float* const row = turn.tile(tile) + 4 * (lane % 4);
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
      if (16 * s < turn.pitch()) angles[s] = *reinterpret_cast<const float4*>(row + 16 * s);
  }
  /// Writes the terms of the eight units, [unit][head] in shared memory.
  __device__ __forceinline__ void multiply(const std::byte* weights, int pitch, int lane, float* terms) const {
    float high[4] = {}, low[4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (16 * s >= pitch) break;
      const auto words = *reinterpret_cast<const Words<4>*>(weights + (s * 32 + lane) * 16);
      const float4 x = angles[s];
      const Words<2> first = half_planes<false>(x.x, x.y), second = half_planes<false>(x.z, x.w);
      gpu::mma_f16(high, words.at, first.at[0], second.at[0]);
      gpu::mma_f16(low, words.at, first.at[1], second.at[1]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      terms[kHeads * (2 * (lane % 4) + i) + lane / 4] = (high[i] + high[2 + i] + low[i] + low[2 + i]) * kUnit;
  }
};

/// Units whose terms a block has in shared memory at a time: kDirect rounds of its warps over units that they read
/// directly, and kCoded rounds over units that come through rings.
struct TermRounds {
  static constexpr int kDirect = 4, kCoded = 8;
  int direct, coded;  ///< units

  RIDGE_HD constexpr TermRounds(int warps, int tiles_at_a_time)
      : direct(kDirect * warps), coded(kCoded * warps * tiles_at_a_time) {}
  RIDGE_HD constexpr int first_coded() const { return (direct + 7) / 8 * 8; }  // whole groups of CentreTerms
  RIDGE_HD constexpr int bytes() const { return 4 * kHeads * (first_coded() + coded); }
};

/// Whether a centre is not zero, as it is until calibrated: all lanes alike.
template <int kPer>
__device__ __forceinline__ bool is_set(const float* centre, int lane) {
  bool set = false;
#pragma unroll
  for (int j = 0; j < kPer; ++j) set = set || centre[lane + 32 * j] != 0;
  return __any_sync(gpu::kAllLanes, set);
}

}  // namespace ridge::tiles
