// One token through the matrix of a value head, columns of it side by side in vectors.
#pragma once

#include <cstdint>

namespace ridge {
namespace {

/// Vectors [first, first + n) of the columns: their sums stay in registers while the rows pass, twice.
template <int n>
void delta_columns(int64_t key_dim, int64_t value_dim, Simd::F keep, Simd::F beta, const float* q, const float* k,
                   const float* v, const float* before, float* state, float* out) {
  Simd::F known[n], change[n], sums[n];
  for (int j = 0; j < n; ++j) known[j] = sums[j] = Simd::zero();
  for (int64_t i = 0; i < key_dim; ++i) {
    const Simd::F key = Simd::set1(k[i]);
    for (int j = 0; j < n; ++j)
      known[j] = Simd::fma(Simd::load(before + i * value_dim + j * Simd::kLanes), key, known[j]);
  }
  for (int j = 0; j < n; ++j)
    change[j] = Simd::mul(beta, Simd::sub(Simd::load(v + j * Simd::kLanes), Simd::mul(keep, known[j])));
  for (int64_t i = 0; i < key_dim; ++i) {
    const Simd::F key = Simd::set1(k[i]), query = Simd::set1(q[i]);
    for (int j = 0; j < n; ++j) {
      const int64_t at = i * value_dim + j * Simd::kLanes;
      const Simd::F now = Simd::fma(key, change[j], Simd::mul(keep, Simd::load(before + at)));
      Simd::store(state + at, now);
      sums[j] = Simd::fma(now, query, sums[j]);
    }
  }
  for (int j = 0; j < n; ++j) Simd::store(out + j * Simd::kLanes, sums[j]);
}

inline void delta_step(int64_t key_dim, int64_t value_dim, float keep, float beta, const float* q, const float* k,
                       const float* v, const float* before, float* state, float* out) {
  const Simd::F keeps = Simd::set1(keep), betas = Simd::set1(beta);
  int64_t j = 0;
  for (; j + 4 * Simd::kLanes <= value_dim; j += 4 * Simd::kLanes)
    delta_columns<4>(key_dim, value_dim, keeps, betas, q, k, v + j, before + j, state + j, out + j);
  for (; j + Simd::kLanes <= value_dim; j += Simd::kLanes)
    delta_columns<1>(key_dim, value_dim, keeps, betas, q, k, v + j, before + j, state + j, out + j);
  for (; j < value_dim; ++j) {
    float known = 0, sum = 0;
    for (int64_t i = 0; i < key_dim; ++i) known += before[i * value_dim + j] * k[i];
    const float change = beta * (v[j] - keep * known);
    for (int64_t i = 0; i < key_dim; ++i) {
      float& entry = state[i * value_dim + j];
      entry = keep * before[i * value_dim + j] + k[i] * change;
      sum += entry * q[i];
    }
    out[j] = sum;
  }
}

}  // namespace
}  // namespace ridge
