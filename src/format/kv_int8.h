// Shared code of p8 and i8r: n values as signed bytes under one fp16 scale.
//
//   absmax  q = round(x / s), s = max|x| / 127 in float, stored rounded to fp16: the numbers of q8_0
//   lsq     from those codes s = sum(x q) / sum(q^2) rounded to fp16, then q = round(x / s) in [-128, 127] again
//
// Ties go away from zero. absmax: |error| <= s/2 + 127 half-ulps of the fp16 scale. lsq: |error| <= s/2 where a code is
// inside its range; values past the last code are clamped to it. Values beyond +-65504 become that before they are
// coded, NaN becomes 0; both are counted.
#pragma once

#include "format/kv_f16.h"

namespace ridge {

/// Codes `n` values by a rule (absmax or lsq), counts what was saturated, returns the fp16 scale.
RIDGE_HD inline uint16_t encode_int8(const float* in, int n, KvScale rule, std::byte* codes, int& saturated) {
  float top = 0;
  for (int i = 0; i < n; ++i) {
    const float size = std::abs(saturate_f16(in[i], saturated));
    top = size > top ? size : top;
  }
  const float scale = top / 127.0f;
  const float inverse = scale > 1e-38f ? 1.0f / scale : 0.0f;  // below, fp16 has no scale but 0 anyway
  double dot = 0, size2 = 0;
  int counted = 0;
  for (int i = 0; i < n; ++i) {
    const float x = saturate_f16(in[i], counted), steps = std::round(x * inverse);
    const float q = steps > 127 ? 127.0f : steps < -127 ? -127.0f : steps;
    const auto code = int8_t(q);
    std::memcpy(codes + i, &code, 1);
    dot += double(x) * q;
    size2 += double(q) * q;
  }
  if (rule != KvScale::lsq || !(size2 > 0)) return f32_to_f16(scale);

  const uint16_t refit = f32_to_f16(float(dot / size2));
  const float step = f16_to_f32(refit), per_step = step > 0 ? 1.0f / step : 0.0f;
  for (int i = 0; i < n; ++i) {
    const float q = std::round(saturate_f16(in[i], counted) * per_step);
    const auto code = int8_t(q > 127 ? 127.0f : q < -128 ? -128.0f : q);
    std::memcpy(codes + i, &code, 1);
  }
  return refit;
}

RIDGE_HD inline void decode_int8(const std::byte* codes, int n, const std::byte* scale_at, float* out) {
  uint16_t half;
  std::memcpy(&half, scale_at, 2);
  const float scale = f16_to_f32(half);
  for (int i = 0; i < n; ++i) {
    int8_t code;
    std::memcpy(&code, codes + i, 1);
    out[i] = float(code) * scale;
  }
}

}  // namespace ridge
