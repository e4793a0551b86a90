// Rounding a row to levels so that its errors cancel where they would be seen.
//
// Nearest rounding makes |u - l|^2 small, whatever reads the row. With a metric M (symmetric, positive definite) the
// cost is (u - l) M (u - l): coordinate descent from the nearest codes, one code at a time in order, each set to its
// best value given all others, in two passes (docs/decisions/0004 says why two). Only the encoder knows the metric;
// where it comes from is in model/kv_metric.h.
//
// Every operation is a float multiply or add in this order, never fused, so that all kernels agree bit for bit.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace ridge {

inline constexpr int kRoundingPasses = 2;
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
inline constexpr int kMaxRoundingDim = 256;  // a device reserves its stack for every thread it could run
#else
inline constexpr int kMaxRoundingDim = 1024;
#endif
inline constexpr int kMaxRoundingLevels = 16;
/// Entries of a metric are within this, its diagonal not below one over this.
inline constexpr float kMostMetric = 0x1p40f;

/// Codes of a rounded row, and the products with the metric from which its scale is chosen.
struct RoundedRow {
  uint8_t codes[kMaxRoundingDim];
  float pull[kMaxRoundingDim];      ///< M u
  float residual[kMaxRoundingDim];  ///< M (u - l)
};

/// u [dim], metric [dim, dim], levels [count] rising; dim a multiple of 8.
using RoundRow = void (*)(const float* u, const float* metric, int dim, const float* levels, int count,
                          RoundedRow& out);

/// The reference.
RIDGE_HD inline void round_weighted(const float* u, const float* metric, int dim, const float* levels, int count,
                                    RoundedRow& out) {
  const auto nearest = [&](float x) {
    int code = 0;
    for (int i = 0; i + 1 < count; ++i) code += x >= 0.5f * (levels[i] + levels[i + 1]);
    return uint8_t(code);
  };
  for (int j = 0; j < dim; ++j) out.pull[j] = out.residual[j] = 0;
  for (int i = 0; i < dim; ++i) {
    out.codes[i] = nearest(u[i]);
    const float error = u[i] - levels[out.codes[i]];
    const float* row = metric + int64_t(i) * dim;
    for (int j = 0; j < dim; ++j) {
      const float pull = u[i] * row[j], push = error * row[j];
      out.pull[j] = out.pull[j] + pull;
      out.residual[j] = out.residual[j] + push;
    }
  }
  for (int pass = 0; pass < kRoundingPasses; ++pass)
    for (int i = 0; i < dim; ++i) {
      const float* row = metric + int64_t(i) * dim;
      const float level = levels[out.codes[i]], step = out.residual[i] / row[i];
      const uint8_t code = nearest(level + step);
      if (code == out.codes[i]) continue;
      const float change = levels[code] - level;
      out.codes[i] = code;
      for (int j = 0; j < dim; ++j) {
        const float back = change * row[j];
        out.residual[j] = out.residual[j] - back;
      }
    }
}

}  // namespace ridge
