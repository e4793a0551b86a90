// KV bf16: every value as bfloat16, little-endian. The range of f32 with 8 bits of precision.
//
// Rounded to nearest, ties to even: |error| <= 2^-8 |x|, 2^-134 where the result is subnormal. Values beyond the
// largest finite bfloat16 (3.3895e38) become that, NaN becomes 0; both are counted.
#pragma once

#include "format/kv_f16.h"

namespace ridge {

struct KvBf16 {
  static constexpr const char* kName = "bf16";
  static constexpr KvPolicy kPolicy{};
  static constexpr int kGroup = 1;
  /// Largest finite bfloat16, 0x7F7F.
  static constexpr float kMax = 3.38953139e38f;

  RIDGE_HD static int64_t row_bytes(int head_dim) { return 2 * int64_t(head_dim); }
  RIDGE_HD static int encode(const float* in, int head_dim, const KvCoding&, std::byte* row) {
    int saturated = 0;
    for (int i = 0; i < head_dim; ++i) {
      float value = in[i];
      if (!(std::abs(value) <= kMax)) {
        value = std::isnan(value) ? 0.0f : std::copysign(kMax, value);
        ++saturated;
      }
      const uint16_t bits = f32_to_bf16(value);
      std::memcpy(row + 2 * i, &bits, 2);
    }
    return saturated;
  }
  RIDGE_HD static void decode(const std::byte* row, int head_dim, const KvCoding&, float* out) {
    for (int i = 0; i < head_dim; ++i) {
      uint16_t bits;
      std::memcpy(&bits, row + 2 * i, 2);
      out[i] = bf16_to_f32(bits);
    }
  }
};

}  // namespace ridge
