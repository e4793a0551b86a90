// RMSNorm and SwiGLU on one row, in vectors.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "op/simd/exp.h"

namespace ridge {
namespace {

inline void rms_norm_row(const float* x, const float* weight, float eps, int64_t n, float* y) {
  Simd::F sum = Simd::zero();
  int64_t i = 0;
  for (; i + Simd::kLanes <= n; i += Simd::kLanes) {
    const Simd::F v = Simd::load(x + i);
    sum = Simd::fma(v, v, sum);
  }
  float tail = 0;
  for (; i < n; ++i) tail += x[i] * x[i];
  // Squares that overflow would give a row of zeros, which hides that the row is out of range.
  const float squares = Simd::sum(sum) + tail;
  const float factor = squares <= std::numeric_limits<float>::max() ? 1.0f / __builtin_sqrtf(squares / float(n) + eps)
                                                                    : std::numeric_limits<float>::quiet_NaN();
  const Simd::F factors = Simd::set1(factor);
  for (i = 0; i + Simd::kLanes <= n; i += Simd::kLanes)
    Simd::store(y + i, Simd::mul(Simd::mul(Simd::load(x + i), factors), Simd::load(weight + i)));
  for (; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

inline void swiglu_row(float* gate, const float* up, int64_t n) {
  int64_t i = 0;
  for (; i + Simd::kLanes <= n; i += Simd::kLanes) {
    const Simd::F g = Simd::load(gate + i);
    const Simd::F sigmoid_inverse = Simd::add(Simd::set1(1.0f), vector_exp(Simd::sub(Simd::zero(), g)));
    Simd::store(gate + i, Simd::mul(Simd::div(g, sigmoid_inverse), Simd::load(up + i)));
  }
  for (; i < n; ++i) gate[i] = gate[i] / (1.0f + __builtin_expf(-gate[i])) * up[i];
}

/// 0.5 g (1 + tanh z) = g / (1 + exp(-2 z)), z = sqrt(2/pi) (g + 0.044715 g^3).
inline void gelu_glu_row(float* gate, const float* up, int64_t n) {
  constexpr float kTwoRoots = 1.5957691216057308f, kCube = 0.044715f;
  int64_t i = 0;
  for (; i + Simd::kLanes <= n; i += Simd::kLanes) {
    const Simd::F g = Simd::load(gate + i);
    const Simd::F inner = Simd::mul(g, Simd::fma(Simd::mul(g, g), Simd::set1(kCube), Simd::set1(1.0f)));
    const Simd::F below = Simd::add(Simd::set1(1.0f), vector_exp(Simd::mul(inner, Simd::set1(-kTwoRoots))));
    Simd::store(gate + i, Simd::mul(Simd::div(g, below), Simd::load(up + i)));
  }
  for (; i < n; ++i) {
    const float g = gate[i], inner = g * (g * g * kCube + 1.0f);
    gate[i] = g / (1.0f + __builtin_expf(-kTwoRoots * inner)) * up[i];
  }
}

}  // namespace
}  // namespace ridge
