// One token through the matrix of a value head, columns of it side by side in vectors.
#pragma once

#include <cstdint>

#include "op/delta/delta.h"

namespace ridge {
namespace {

/// Columns [first, first + n vectors): their sums stay in registers while the rows pass, twice.
template <int n>
void delta_columns(const DeltaToken d, int64_t first) {
  const float *const v = d.v + first, *const before = d.before + first;
  float *const state = d.state + first, *const out = d.out + first;
  const Simd::F keep = Simd::set1(d.keep), beta = Simd::set1(d.beta);
  Simd::F known[n], change[n], sums[n];
  for (int j = 0; j < n; ++j) known[j] = sums[j] = Simd::zero();
  for (int64_t i = 0; i < d.key_dim; ++i) {
    const Simd::F key = Simd::set1(d.k[i]);
    for (int j = 0; j < n; ++j)
      known[j] = Simd::fma(Simd::load(before + i * d.value_dim + j * Simd::kLanes), key, known[j]);
  }
  for (int j = 0; j < n; ++j)
    change[j] = Simd::mul(beta, Simd::sub(Simd::load(v + j * Simd::kLanes), Simd::mul(keep, known[j])));
  for (int64_t i = 0; i < d.key_dim; ++i) {
    const Simd::F key = Simd::set1(d.k[i]), query = Simd::set1(d.q[i]);
    for (int j = 0; j < n; ++j) {
      const int64_t at = i * d.value_dim + j * Simd::kLanes;
      const Simd::F now = Simd::fma(key, change[j], Simd::mul(keep, Simd::load(before + at)));
      Simd::store(state + at, now);
      sums[j] = Simd::fma(now, query, sums[j]);
    }
  }
  for (int j = 0; j < n; ++j) Simd::store(out + j * Simd::kLanes, sums[j]);
}

/// A copy of the token: the compiler knows then that no store changes it.
inline void delta_step(const DeltaToken d) {
  int64_t j = 0;
  for (; j + 4 * Simd::kLanes <= d.value_dim; j += 4 * Simd::kLanes) delta_columns<4>(d, j);
  for (; j + Simd::kLanes <= d.value_dim; j += Simd::kLanes) delta_columns<1>(d, j);
  for (; j < d.value_dim; ++j) {
    float known = 0, sum = 0;
    for (int64_t i = 0; i < d.key_dim; ++i) known += d.before[i * d.value_dim + j] * d.k[i];
    const float change = d.beta * (d.v[j] - d.keep * known);
    for (int64_t i = 0; i < d.key_dim; ++i) {
      float& entry = d.state[i * d.value_dim + j];
      entry = d.keep * d.before[i * d.value_dim + j] + d.k[i] * change;
      sum += entry * d.q[i];
    }
    d.out[j] = sum;
  }
}

}  // namespace
}  // namespace ridge
