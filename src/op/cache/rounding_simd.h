// Weighted rounding in vectors. Included once per ISA after its Simd struct; head_dim a multiple of 64.
#pragma once

#include "format/weighted_rounding.h"

namespace ridge {
namespace {

/// Midpoints between levels, padded with infinity: the code of x is how many of them x reaches.
struct Midpoints {
  alignas(64) float at[kMaxRoundingLevels];

  Midpoints(const float* levels, int count) {
    for (int i = 0; i < kMaxRoundingLevels; ++i)
      at[i] = i + 1 < count ? 0.5f * (levels[i] + levels[i + 1]) : __builtin_inff();
  }
  uint8_t nearest(float x) const {
    int code = 0;
    for (int i = 0; i < kMaxRoundingLevels; i += Simd::kLanes)
      code += Simd::count_ge(Simd::set1(x), Simd::load(at + i));
    return uint8_t(code);
  }
};

inline void run_round_row(const float* u, const float* metric, int dim, const float* levels, int count,
                          RoundedRow& out) {
  constexpr int kVectors = 64 / Simd::kLanes;
  const Midpoints midpoints(levels, count);
  alignas(64) float error[kMaxRoundingDim];
  for (int i = 0; i < dim; ++i) {
    out.codes[i] = midpoints.nearest(u[i]);
    error[i] = u[i] - levels[out.codes[i]];
  }
  for (int block = 0; block < dim; block += 32) {
    Simd::F pull[kVectors / 2], residual[kVectors / 2];
    for (int v = 0; v < kVectors / 2; ++v) pull[v] = residual[v] = Simd::zero();
    for (int i = 0; i < dim; ++i) {
      const float* row = metric + int64_t(i) * dim + block;
      const Simd::F ui = Simd::set1(u[i]), ei = Simd::set1(error[i]);
      for (int v = 0; v < kVectors / 2; ++v) {
        const Simd::F weight = Simd::load(row + v * Simd::kLanes);
        pull[v] = Simd::add(pull[v], Simd::mul(ui, weight));
        residual[v] = Simd::add(residual[v], Simd::mul(ei, weight));
      }
    }
    for (int v = 0; v < kVectors / 2; ++v) {
      Simd::store(out.pull + block + v * Simd::kLanes, pull[v]);
      Simd::store(out.residual + block + v * Simd::kLanes, residual[v]);
    }
  }
  for (int pass = 0; pass < kRoundingPasses; ++pass)
    for (int i = 0; i < dim; ++i) {
      const float* row = metric + int64_t(i) * dim;
      const float level = levels[out.codes[i]], step = out.residual[i] / row[i];
      const uint8_t code = midpoints.nearest(level + step);
      if (code == out.codes[i]) continue;
      const float change = levels[code] - level;
      const Simd::F d = Simd::set1(change);
      out.codes[i] = code;
      for (int j = 0; j < dim; j += Simd::kLanes)
        Simd::store(out.residual + j, Simd::sub(Simd::load(out.residual + j), Simd::mul(d, Simd::load(row + j))));
    }
}

}  // namespace
}  // namespace ridge
