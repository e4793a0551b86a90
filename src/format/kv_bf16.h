// KV bf16: every value as bfloat16, little-endian. The range of f32 with 8 bits of precision.
//
// Rounded to nearest, ties to even: |error| <= 2^-8 |x|, 2^-134 where the result is subnormal. Values beyond the
// largest finite bfloat16 (3.3895e38) become that, NaN becomes 0; both are counted.
#pragma once

#include "format/kv_f16.h"

namespace ridge {

struct KvBf16 : KvFloats16<KvBf16> {
  static constexpr const char* kName = "bf16";
  static constexpr float kMax = 3.38953139e38f;  ///< the largest finite bfloat16, 0x7F7F
  RIDGE_HD static uint16_t to_bits(float value) { return f32_to_bf16(value); }
  RIDGE_HD static float from_bits(uint16_t bits) { return bf16_to_f32(bits); }
};

}  // namespace ridge
