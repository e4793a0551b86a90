// Rows of rotor-3t coded by a warp: the host's operations on every element in the host's order (format/kv_rotor3t.h,
// format/trellis.h), spread over the lanes. Device code for *_exact.cu.
//
// The search goes from place to place. Two lanes have a state: each tries four of the eight ways into it. Every state's
// feedback at places to come follows its way: at those of a block of eight at once, at all behind them when the block is
// done, along the path that each state has taken through it. The sums are the same.
#pragma once

#include "format/kv_rotor3t.h"
#include "op/cache/rotor_block.h"

namespace ridge {

/// Shared memory of a search over rows of dim values.
struct TrellisRoom {
  static constexpr int kBlock = 8;
  struct Ways {  ///< into the states at a place
    float level[kTrellisStates];
    int from[kTrellisStates];
  };
  int dim;
  double (*terms)[34];  ///< [3]
  Ways* ways;           ///< [kBlock] of the places of a block
  float* path;          ///< [states, kBlock] levels on the way to a state
  int* origin;          ///< [states] in front of the block
  float* values;        ///< [dim] in the order of the chain: W u at the end
  float* levels;        ///< [dim] the row, in the order of channels, at first; W l in the order of the chain at the end
  float* feedback;      ///< [states, dim + 1] of places to come; the odd pitch keeps states on different banks
  uint8_t* numbers;     ///< [dim, states] of ways
  uint8_t* codes;       ///< [dim] in the order of the chain

  RIDGE_HD static size_t bytes(int dim) {
    return 3 * 34 * sizeof(double) + kBlock * sizeof(Ways) + size_t(4 * kTrellisStates * (kBlock + 1)) +
           size_t(4 * (dim + dim + kTrellisStates * (dim + 1))) + size_t((kTrellisStates + 1) * dim + 15) / 16 * 16;
  }
  __device__ TrellisRoom(std::byte* shared, int n) : dim(n) {
    terms = reinterpret_cast<double(*)[34]>(shared);
    ways = reinterpret_cast<Ways*>(terms + 3);
    path = reinterpret_cast<float*>(ways + kBlock);
    origin = reinterpret_cast<int*>(path + kTrellisStates * kBlock);
    values = reinterpret_cast<float*>(origin + kTrellisStates);
    levels = values + dim;
    feedback = levels + dim;
    numbers = reinterpret_cast<uint8_t*>(feedback + kTrellisStates * (dim + 1));
    codes = numbers + kTrellisStates * dim;
  }
  /// Integer level of place k.
  __device__ float level(int k) const {
    return float(trellis_level(codes[k], k > 0 ? codes[k - 1] : 0, k > 1 ? codes[k - 2] : 0));
  }
};

/// row [dim] <- W row, both in the order of the chain. Every sum in the order of j.
__device__ __forceinline__ void times_factor_in_warp(const float* factor, int dim, int lane, float* row) {
  if (!factor) return;
  __syncwarp();
  float sum[kMaxRoundingDim / 32];
#pragma unroll
  for (int i = 0; i < kMaxRoundingDim / 32; ++i) {
    const int k = lane + 32 * i;
    if (32 * i >= dim) break;
    sum[i] = row[k];
#pragma unroll 8
    for (int j = 0; j < 32 * i + 31; ++j) {
      const float added = __fmaf_rn(row[j], factor[j * dim + k], sum[i]);
      sum[i] = j < k ? added : sum[i];
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kMaxRoundingDim / 32; ++i)
    if (32 * i < dim) row[lane + 32 * i] = sum[i];
  __syncwarp();
}

/// code_trellis() of room.values, which are W u: room.codes.
__device__ __forceinline__ void search_trellis(const TrellisRoom& room, const float* factor, int lane) {
  constexpr int kWays = kTrellisWays / 2, kBlock = TrellisRoom::kBlock;  // ways of a lane
  const float never = __int_as_float(0x7F800000);
  const int dim = room.dim, pitch = dim + 1, state = lane % kTrellisStates, first_way = lane / kTrellisStates * kWays;
  float level[kWays], cost = state == 0 ? 0.0f : never;
  int from[kWays];
#pragma unroll
  for (int i = 0; i < kWays; ++i) {
    level[i] = float(trellis_way_level(state, first_way + i));
    from[i] = trellis_from(state, first_way + i);
  }
  for (int i = lane; i < kTrellisStates * pitch; i += 32) room.feedback[i] = 0;
  __syncwarp();
#pragma unroll 1
  for (int k = 0; k < dim; ++k) {
    const float* const row = factor ? factor + k * dim : nullptr;
    const float value = room.values[k], weight = row ? row[k] : 1.0f;
    float least = never, its_level = level[0];
    int way = first_way;
#pragma unroll
    for (int i = 0; i < kWays; ++i) {
      const float wanted = value - room.feedback[from[i] * pitch + k];
      const float error = wanted - level[i], square = error * error;
      const float sum = __fmaf_rn(square, weight, __shfl_sync(gpu::kAllLanes, cost, from[i]));
      if (sum < least) least = sum, its_level = level[i], way = first_way + i;
    }
    const float other = __shfl_xor_sync(gpu::kAllLanes, least, kTrellisStates);
    const float other_level = __shfl_xor_sync(gpu::kAllLanes, its_level, kTrellisStates);
    const int other_way = __shfl_xor_sync(gpu::kAllLanes, way, kTrellisStates);
    // The first of the ways that cost least.
    if (first_way == 0 ? other < least : !(least < other)) least = other, its_level = other_level, way = other_way;
    cost = least;
    TrellisRoom::Ways& ways = room.ways[k % kBlock];
    if (first_way == 0) {
      room.numbers[k * kTrellisStates + state] = uint8_t(way);
      ways.level[state] = its_level;
      ways.from[state] = trellis_from(state, way);
    }
    __syncwarp();
    if (!factor) continue;
    // Places of the block: a lane has one of them and four states.
    const int near = k / kBlock * kBlock + lane % kBlock, first_state = lane / kBlock * 4;
    float follows[4];
#pragma unroll
    for (int s = 0; s < 4; ++s)
      follows[s] =
          __fmaf_rn(row[near], ways.level[first_state + s], room.feedback[ways.from[first_state + s] * pitch + near]);
    __syncwarp();
#pragma unroll
    for (int s = 0; s < 4; ++s)
      if (near > k) room.feedback[(first_state + s) * pitch + near] = follows[s];
    __syncwarp();
    if (k % kBlock < kBlock - 1) continue;
    if (lane < kTrellisStates) {
      int at = lane;
      for (int i = kBlock - 1; i >= 0; --i) {
        room.path[lane * kBlock + i] = room.ways[i].level[at];
        at = room.ways[i].from[at];
      }
      room.origin[lane] = at * pitch;
    }
    __syncwarp();
#pragma unroll 1
    for (int j = (k + 1) / 32 * 32 + lane; j < dim; j += 32) {
      if (j <= k) continue;
      float w[kBlock], next[kTrellisStates];
#pragma unroll
      for (int i = 0; i < kBlock; ++i) w[i] = row[(i + 1 - kBlock) * dim + j];
#pragma unroll
      for (int s = 0; s < kTrellisStates; ++s) {
        next[s] = room.feedback[room.origin[s] + j];
#pragma unroll
        for (int i = 0; i < kBlock; ++i) next[s] = __fmaf_rn(w[i], room.path[s * kBlock + i], next[s]);
      }
#pragma unroll
      for (int s = 0; s < kTrellisStates; ++s) room.feedback[s * pitch + j] = next[s];
    }
    __syncwarp();
  }
  float best = cost;
  for (int step = kTrellisStates / 2; step > 0; step /= 2)
    best = fminf(best, __shfl_xor_sync(gpu::kAllLanes, best, step));
  int at = __ffs(int(__ballot_sync(gpu::kAllLanes, cost == best))) - 1;
  for (int k = dim - 1; lane == 0 && k >= 0; --k) {
    room.codes[k] = uint8_t(at & 7);
    at = trellis_from(at, room.numbers[k * kTrellisStates + at]);
  }
  __syncwarp();
}

/// KvRotor3t::encode of the row in room.levels: room.codes. Returns the scale; adds what saturated on this lane.
__device__ __forceinline__ uint16_t encode_trellis(const TrellisRoom& room, const float* factor, KvScale rule,
                                                   int& saturated) {
  const int lane = int(threadIdx.x) % 32, dim = room.dim, n = dim / 32;
  double sum = 0;
  for (int d = lane; d < dim; d += 32) {
    const float x = room.levels[d] = saturate_f16(room.levels[d], saturated);
    const double square[3] = {double(x) * x};
    add_ordered<1>(room.terms, lane, square, sum);
  }
  const float norm = float(sqrt(__shfl_sync(gpu::kAllLanes, sum, 0)));
  const float to_levels = norm > 1e-30f ? kTrellisDeviation * sqrtf(float(dim)) / norm : 0.0f;
  for (int i = 0; i < n; ++i) room.values[n * lane + i] = room.levels[lane + 32 * i] * to_levels;
  __syncwarp();
  times_factor_in_warp(factor, dim, lane, room.values);
  search_trellis(room, factor, lane);
  for (int k = lane; k < dim; k += 32) room.levels[k] = room.level(k);
  times_factor_in_warp(factor, dim, lane, room.levels);
  sum = 0;
  for (int k = lane; k < dim; k += 32) {
    const double weight = factor ? double(factor[k * (dim + 1)]) : 1.0;
    const double value = weight * room.values[k], level = weight * room.levels[k];
    const double products[3] = {value * room.values[k], value * room.levels[k], level * room.levels[k]};
    add_ordered<3>(room.terms, lane, products, sum);
  }
  const double back = to_levels > 0 ? 1.0 / to_levels : 0.0;
  RotorCodes<3>::Fit fit;
  fit.size2 = __shfl_sync(gpu::kAllLanes, sum, 0) * (back * back);
  fit.dot = __shfl_sync(gpu::kAllLanes, sum, 1) * (back * KvRotor3t::kUnit);
  fit.levels2 = __shfl_sync(gpu::kAllLanes, sum, 2) * (double(KvRotor3t::kUnit) * KvRotor3t::kUnit);
  int lost = 0;
  const uint16_t scale = f32_to_f16(saturate_f16(fit.scale(rule), lost));
  if (lane == 0) saturated += lost;
  return scale;
}

}  // namespace ridge
