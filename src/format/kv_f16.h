// KV f16: every value as IEEE fp16, little-endian. The default, and the reference every compressed cache is compared
// with.
//
// Rounded to nearest, ties to even: |error| <= 2^-11 |x|, 2^-25 where the result is subnormal. Values beyond +-65504
// become +-65504, NaN becomes 0; both are counted.
#pragma once

#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "format/kv_format.h"

namespace ridge {

/// Largest finite fp16; cache values beyond it are clamped to it and counted.
inline constexpr float kMaxF16 = 65504.0f;

/// A value of magnitude up to `most`, or the nearest such (NaN becomes 0); `count` grows when it was not.
RIDGE_HD inline float saturate_to(float most, float value, int& count) {
  if (std::abs(value) <= most) return value;
  ++count;
  return std::isnan(value) ? 0.0f : std::copysign(most, value);
}
RIDGE_HD inline float saturate_f16(float value, int& count) { return saturate_to(kMaxF16, value, count); }

/// Rows of 16-bit floats, as F::to_bits() and F::from_bits() make and read them.
template <class F>
struct KvFloats16 {
  static constexpr KvPolicy kPolicy{};
  static constexpr int kGroup = 1;
  RIDGE_HD static int64_t row_bytes(int head_dim) { return 2 * int64_t(head_dim); }
  RIDGE_HD static int encode(const float* in, int head_dim, const KvCoding&, std::byte* row) {
    int saturated = 0;
    for (int i = 0; i < head_dim; ++i) {
      const uint16_t bits = F::to_bits(saturate_to(F::kMax, in[i], saturated));
      std::memcpy(row + 2 * i, &bits, 2);
    }
    return saturated;
  }
  RIDGE_HD static void decode(const std::byte* row, int head_dim, const KvCoding&, float* out) {
    for (int i = 0; i < head_dim; ++i) {
      uint16_t bits;
      std::memcpy(&bits, row + 2 * i, 2);
      out[i] = F::from_bits(bits);
    }
  }
};

struct KvF16 : KvFloats16<KvF16> {
  static constexpr const char* kName = "f16";
  static constexpr float kMax = kMaxF16;
  RIDGE_HD static uint16_t to_bits(float value) { return f32_to_f16(value); }
  RIDGE_HD static float from_bits(uint16_t bits) { return f16_to_f32(bits); }
};

}  // namespace ridge
