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

/// A finite value in fp16 range, or the nearest one (NaN becomes 0); `count` grows when it was not.
RIDGE_HD inline float saturate_f16(float value, int& count) {
  if (std::abs(value) <= kMaxF16) return value;
  ++count;
  return std::isnan(value) ? 0.0f : std::copysign(kMaxF16, value);
}

struct KvF16 {
  static constexpr const char* kName = "f16";
  static constexpr KvPolicy kPolicy{};
  static constexpr int kGroup = 1;
  RIDGE_HD static int64_t row_bytes(int head_dim) { return 2 * int64_t(head_dim); }
  RIDGE_HD static int encode(const float* in, int head_dim, const KvCoding&, std::byte* row) {
    int saturated = 0;
    for (int i = 0; i < head_dim; ++i) {
      const uint16_t half = f32_to_f16(saturate_f16(in[i], saturated));
      std::memcpy(row + 2 * i, &half, 2);
    }
    return saturated;
  }
  RIDGE_HD static void decode(const std::byte* row, int head_dim, const KvCoding&, float* out) {
    for (int i = 0; i < head_dim; ++i) {
      uint16_t half;
      std::memcpy(&half, row + 2 * i, 2);
      out[i] = f16_to_f32(half);
    }
  }
};

}  // namespace ridge
