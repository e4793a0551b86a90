// Shared code of tq1_0 and tq2_0: the best ternary approximation of a block of 256 weights.
//
// The encoder takes the scale that minimises sum (w - scale * code)^2 over all codes in {-1, 0, 1}, rounds it to fp16,
// and then code = sign(w) where |w| > scale / 2, 0 elsewhere. Weights that are {-s, 0, s} already are kept exactly (s
// rounded to fp16).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "base/f16.h"

namespace ridge {

/// Codes 0, 1, 2 for weights -scale, 0, +scale.
inline uint8_t ternary_code(float weight, float scale) {
  return uint8_t(1 + (weight > scale / 2) - (weight < -scale / 2));
}

/// The scale (as fp16 bits) that minimises sum (w - scale * code)^2 over 256 weights and all codes in {-1, 0, 1}.
///
/// If the k largest magnitudes get a code other than 0, the best scale is their mean and the error falls by
/// (their sum)^2 / k: the best k is found by trying all.
inline uint16_t best_ternary_scale(const float* weights) {
  constexpr int kGroup = 256;
  float magnitude[kGroup];
  for (int i = 0; i < kGroup; ++i) magnitude[i] = std::abs(weights[i]);
  std::sort(magnitude, magnitude + kGroup, std::greater<>());
  double sum = 0, best = -1, scale = 0;
  for (int k = 1; k <= kGroup; ++k) {
    sum += magnitude[k - 1];
    const double gain = sum * sum / k;
    if (gain <= best) continue;
    best = gain;
    scale = sum / k;
  }
  return f32_to_f16(float(scale));
}

}  // namespace ridge
