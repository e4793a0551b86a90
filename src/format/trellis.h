// A trellis code of 3 bits a value: the level of a value depends on its own code and on the two codes before it.
//
// Codes c_0, c_1, .. of a row form a chain; those before c_0 count as 0. With b the top bit of c_(k-2),
//
//   level_k = kOwn[c_k ^ (b ? kFlipOwn : 0)] + kBefore[c_(k-1) ^ (b ? kFlipBefore : 0)],
//
// an integer. Code k stands at bits 3 k .. 3 k + 2 of the row, so the seven bits that decide level k are adjacent: any
// position can be decoded alone, by one look-up in a table of 128 bytes or by two in tables of 8. A search is needed
// for coding only: 16 states (c_(k-1), b) and 8 ways into each.
//
// Place k of the chain is channel 32 (k mod n) + k div n, n = dim / 32. Values 32 channels apart lie in one lane of a
// GPU's tile on either side (op/cache/tile_order.h), so neighbours of a chain do too, except where k mod n is 0.
//
// The metric M of weighted rounding enters as its factor: M = W^T D W in the order of the chain, D diagonal, W lower
// triangular with a diagonal of ones. The cost (u - l) M (u - l) is then a sum over k of D_k (y_k - l_k - f_k)^2 with
// y = W u and f_k = sum of W_kj l_j over j < k: every term depends on codes up to k only. D_k is what an error at k still
// costs after all later codes have answered to it.
//
// Every operation of the search is a float operation in the order below, fused exactly where std::fma says so: all
// kernels agree bit for bit. Why these tables: docs/decisions/0021. A prototype of
// tools/train_trellis.cpp has found them, by the same method with other random values.
#pragma once

#include <cmath>
#include <cstdint>

#include "format/weighted_rounding.h"

namespace ridge {

/// Tables in steps of 1/46 of a value's deviation. A plain struct: functions copy it to a local constant, which device
/// code can index.
struct TrellisTables {
  int8_t own[8] = {83, 9, -80, -7, 25, -24, 45, -45};
  int8_t before[8] = {-4, -24, 39, 14, 6, 25, -14, -40};
};
inline constexpr int kFlipOwn = 3, kFlipBefore = 7;
inline constexpr float kTrellisDeviation = 46;  ///< of normal values for which the levels are right
inline constexpr int kTrellisStates = 16, kTrellisWays = 8;

/// Level of code c after codes c1 and, before that, c2.
RIDGE_HD constexpr int trellis_level(int c, int c1, int c2) {
  constexpr TrellisTables tables;
  const bool flips = c2 >= 4;
  return tables.own[c ^ (flips ? kFlipOwn : 0)] + tables.before[c1 ^ (flips ? kFlipBefore : 0)];
}
/// The level by the seven bits of its window: c << 4 | c1 << 1 | c2 >> 2.
RIDGE_HD constexpr int trellis_level_at(int window) {
  return trellis_level(window >> 4, window >> 1 & 7, (window & 1) << 2);
}

/// Channel of place k of the chain; dim a multiple of 32.
RIDGE_HD constexpr int trellis_channel(int k, int dim) { return k % (dim / 32) * 32 + k / (dim / 32); }
/// Place of a channel in the chain.
RIDGE_HD constexpr int trellis_place(int channel, int dim) { return channel % 32 * (dim / 32) + channel / 32; }

/// State of the search after a code: c | (top bit of the code before it) << 3. Way w into state s comes from
/// trellis_from(s, w); the level on the way depends on nothing else.
RIDGE_HD constexpr int trellis_from(int state, int way) { return (state >> 3) * 4 + way % 4 + way / 4 * 8; }
RIDGE_HD constexpr int trellis_way_level(int state, int way) {
  const int from = trellis_from(state, way);
  return trellis_level(state & 7, from & 7, from >> 3 << 2);
}

/// What the search leaves, in the order of the chain: with these the scale of the row is chosen.
struct TrellisRow {
  uint8_t codes[kMaxRoundingDim];
  float of_values[kMaxRoundingDim];  ///< W u
  float of_levels[kMaxRoundingDim];  ///< W l
};

/// u [dim] in units of levels and in the order of the chain; factor [dim, dim]: entry (j, k) is D_j at k = j, W_kj at
/// k > j and 0 else; nullptr: the identity.
using CodeTrellis = void (*)(const float* u, const float* factor, int dim, TrellisRow& out);

/// out = W u.
RIDGE_HD inline void times_factor(const float* u, const float* factor, int dim, float* out) {
  for (int k = 0; k < dim; ++k) out[k] = u[k];
  for (int j = 0; factor && j < dim; ++j)
    for (int k = j + 1; k < dim; ++k) out[k] = std::fma(u[j], factor[int64_t(j) * dim + k], out[k]);
}

/// Levels of a chain of codes.
RIDGE_HD inline void trellis_levels(const uint8_t* codes, int dim, float* levels) {
  for (int k = 0; k < dim; ++k)
    levels[k] = float(trellis_level(codes[k], k > 0 ? codes[k - 1] : 0, k > 1 ? codes[k - 2] : 0));
}

/// The reference of CodeTrellis: Viterbi's search, each state with the feedback of its own path.
inline void code_trellis(const float* u, const float* factor, int dim, TrellisRow& out) {
  constexpr float kNever = __builtin_inff();
  float feedback[kMaxRoundingDim][kTrellisStates];  // f of places to come
  uint8_t ways[kMaxRoundingDim][kTrellisStates];
  float cost[kTrellisStates];
  times_factor(u, factor, dim, out.of_values);
  for (int s = 0; s < kTrellisStates; ++s) cost[s] = s == 0 ? 0.0f : kNever;
  for (int k = 0; k < dim; ++k)
    for (int s = 0; s < kTrellisStates; ++s) feedback[k][s] = 0;
  for (int k = 0; k < dim; ++k) {
    const float* const row = factor ? factor + int64_t(k) * dim : nullptr;
    float least[kTrellisStates], level[kTrellisStates];
    for (int s = 0; s < kTrellisStates; ++s) {
      least[s] = kNever;
      ways[k][s] = 0;
      for (int way = 0; way < kTrellisWays; ++way) {
        const int from = trellis_from(s, way);
        const float wanted = out.of_values[k] - feedback[k][from];
        const float error = wanted - float(trellis_way_level(s, way)), square = error * error;
        const float sum = std::fma(square, row ? row[k] : 1.0f, cost[from]);
        if (sum < least[s]) least[s] = sum, ways[k][s] = uint8_t(way);
      }
      level[s] = float(trellis_way_level(s, ways[k][s]));
    }
    for (int s = 0; s < kTrellisStates; ++s) cost[s] = least[s];
    for (int j = k + 1; row && j < dim; ++j) {
      float next[kTrellisStates];
      for (int s = 0; s < kTrellisStates; ++s)
        next[s] = std::fma(row[j], level[s], feedback[j][trellis_from(s, ways[k][s])]);
      for (int s = 0; s < kTrellisStates; ++s) feedback[j][s] = next[s];
    }
  }
  int state = 0;
  for (int s = 1; s < kTrellisStates; ++s)
    if (cost[s] < cost[state]) state = s;
  for (int k = dim - 1; k >= 0; --k) {
    out.codes[k] = uint8_t(state & 7);
    state = trellis_from(state, ways[k][state]);
  }
  float levels[kMaxRoundingDim];
  trellis_levels(out.codes, dim, levels);
  times_factor(levels, factor, dim, out.of_levels);
}

}  // namespace ridge
