// The trellis search in vectors of states. Included once per ISA after its Simd struct and a function
//
//   move_states(const int32_t* from, const float* in, float* out)    out[s] = in[from[s]], 16 of each, 64-byte aligned
//
// Feedback on places of the same block of 16 follows every step; on later places it follows a block: paths are moved
// once, then the block's 16 levels are added in their order.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "op/cache/trellis_levels.h"

namespace ridge {
namespace {

constexpr int kTrellisBlock = 16;

/// A value of every state.
struct alignas(64) States {
  float at[kTrellisStates];
};

/// sum[s] = a * b[s] + sum[s].
inline void add_product(float a, const float* b, float* sum) {
  const Simd::F all = Simd::set1(a);
  for (int s = 0; s < kTrellisStates; s += Simd::kLanes)
    Simd::store(sum + s, Simd::fma(all, Simd::load(b + s), Simd::load(sum + s)));
}

/// times_factor(), 16 places at a time.
inline void multiply_factor(const float* u, const float* factor, int dim, float* out) {
  constexpr int kVectors = kTrellisBlock / Simd::kLanes;
  for (int first = 0; first < dim; first += kTrellisBlock) {
    float* const sum = out + first;
    for (int i = 0; i < kTrellisBlock; ++i) sum[i] = u[first + i];
    if (!factor) continue;
    Simd::F sums[kVectors];
    for (int v = 0; v < kVectors; ++v) sums[v] = Simd::load(sum + v * Simd::kLanes);
    const float* row = factor + first;
    for (int j = 0; j < first; ++j, row += dim)
      for (int v = 0; v < kVectors; ++v)
        sums[v] = Simd::fma(Simd::set1(u[j]), Simd::load(row + v * Simd::kLanes), sums[v]);
    for (int v = 0; v < kVectors; ++v) Simd::store(sum + v * Simd::kLanes, sums[v]);
    for (int j = 0; j < kTrellisBlock; ++j, row += dim)
      for (int i = j + 1; i < kTrellisBlock; ++i) sum[i] = std::fma(u[first + j], row[i], sum[i]);
  }
}

inline void run_code_trellis(const float* u, const float* factor, int dim, TrellisRow& out) {
  States feedback[kMaxRoundingDim], cost, wanted, moved, level;
  uint8_t ways[kMaxRoundingDim][kTrellisStates];
  multiply_factor(u, factor, dim, out.of_values);
  for (int k = 0; k < dim; ++k) feedback[k] = {};
  for (int s = 0; s < kTrellisStates; ++s) cost.at[s] = s == 0 ? 0.0f : __builtin_inff();
  for (int first = 0; first < dim; first += kTrellisBlock) {
    States levels[kTrellisBlock];  // of the paths, place by place
    alignas(64) int32_t origin[kTrellisStates], next_origin[kTrellisStates];
    for (int s = 0; s < kTrellisStates; ++s) origin[s] = s;
    for (int i = 0; i < kTrellisBlock; ++i) {
      const int k = first + i;
      const float* const row = factor ? factor + int64_t(k) * dim : nullptr;
      const float weight = row ? row[k] : 1.0f;
      States least;
      alignas(64) int32_t best[kTrellisStates], from[kTrellisStates];
      for (int s = 0; s < kTrellisStates; ++s) {
        wanted.at[s] = out.of_values[k] - feedback[k].at[s];
        least.at[s] = __builtin_inff();
        best[s] = 0;
      }
      for (int way = 0; way < kTrellisWays; ++way) {
        States from_wanted, from_cost;
        for (int s = 0; s < kTrellisStates; ++s) {
          const int before = trellis_from(s, way);
          from_wanted.at[s] = wanted.at[before];
          from_cost.at[s] = cost.at[before];
        }
        for (int s = 0; s < kTrellisStates; ++s) {
          const float error = from_wanted.at[s] - kTrellisLevels.of_way[way][s];
          const float sum = std::fma(error * error, weight, from_cost.at[s]);
          best[s] = sum < least.at[s] ? way : best[s];
          least.at[s] = sum < least.at[s] ? sum : least.at[s];
        }
      }
      cost = least;
      for (int s = 0; s < kTrellisStates; ++s) {
        ways[k][s] = uint8_t(best[s]);
        from[s] = kTrellisLevels.from[best[s]][s];
        level.at[s] = kTrellisLevels.of_way[best[s]][s];
      }
      if (!row) continue;
      for (int j = i + 1; j < kTrellisBlock; ++j) {
        move_states(from, feedback[first + j].at, moved.at);
        add_product(row[first + j], level.at, moved.at);
        feedback[first + j] = moved;
      }
      for (int j = 0; j < i; ++j) {
        move_states(from, levels[j].at, moved.at);
        levels[j] = moved;
      }
      levels[i] = level;
      for (int s = 0; s < kTrellisStates; ++s) next_origin[s] = origin[from[s]];
      for (int s = 0; s < kTrellisStates; ++s) origin[s] = next_origin[s];
    }
    for (int k = first + kTrellisBlock; factor && k < dim; ++k) {
      move_states(origin, feedback[k].at, moved.at);
      const float* weight = factor + int64_t(first) * dim + k;
      constexpr int kVectors = kTrellisStates / Simd::kLanes;
      Simd::F sums[kVectors];
      for (int v = 0; v < kVectors; ++v) sums[v] = Simd::load(moved.at + v * Simd::kLanes);
      for (int i = 0; i < kTrellisBlock; ++i, weight += dim)
        for (int v = 0; v < kVectors; ++v)
          sums[v] = Simd::fma(Simd::set1(*weight), Simd::load(levels[i].at + v * Simd::kLanes), sums[v]);
      for (int v = 0; v < kVectors; ++v) Simd::store(feedback[k].at + v * Simd::kLanes, sums[v]);
    }
  }
  int state = 0;
  for (int s = 1; s < kTrellisStates; ++s)
    if (cost.at[s] < cost.at[state]) state = s;
  for (int k = dim - 1; k >= 0; --k) {
    out.codes[k] = uint8_t(state & 7);
    state = kTrellisLevels.from[ways[k][state]][state];
  }
  float chosen[kMaxRoundingDim];
  unsigned window = 0;
  for (int k = 0; k < dim; ++k) {
    window = window >> 3 | unsigned(out.codes[k]) << 4;
    chosen[k] = kTrellisLevels.of_window[window];
  }
  multiply_factor(chosen, factor, dim, out.of_levels);
}

}  // namespace
}  // namespace ridge
