// fp16 and bf16 conversions, bit-exact and independent of the compiler's flags. Fast paths use the hardware's own
// instructions and are tested against these over all 65536 codes.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace ridge {

/// IEEE binary16 to binary32. Exact for every code; NaN payloads are kept, quieted.
RIDGE_HD constexpr float f16_to_f32(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1Fu;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = float(mantissa) * 0x1p-24f;  // zero and subnormals are exact multiples of 2^-24
  return sign ? -magnitude : magnitude;
}

/// binary32 to IEEE binary16, to nearest, ties to even. Values past 65519.99 become infinity.
RIDGE_HD constexpr uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return uint16_t(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x477FF000u) return uint16_t(sign | 0x7C00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                                  // below 2^-14: subnormal result
    // Adding 0.5 puts the last kept bit (2^-24) at the last mantissa bit, so the hardware rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
}

/// bfloat16 to binary32, exact.
RIDGE_HD constexpr float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

/// binary32 to bfloat16, to nearest, ties to even.
RIDGE_HD constexpr uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return uint16_t((bits >> 16) | 0x40u);
  return uint16_t((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace ridge
