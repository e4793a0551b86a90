// mxfp4: 4-bit floats, one 8-bit exponent per 32 weights, 4.25 bits per weight. GGUF type 39. Read, not written.
//
// A code is a sign (bit 3), two bits of exponent and one of fraction; codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6.
// Weight i < 16 is the low nibble of q[i], weight i >= 16 the high nibble of q[i - 16]; value = code * 2^(exponent -
// 127), exact in float. Exponent 255, no number in the OCP's specification, is 2^128 here as in other readers of GGUF.
// Source: OCP Microscaling Formats 1.0, MXFP4; GGUF, block_mxfp4.
#pragma once

#include <cmath>

#include "base/f16.h"

namespace ridge {

struct MXFP4 {
  struct Block {
    uint8_t exponent;
    uint8_t q[16];
  };
  static constexpr const char* kName = "mxfp4";
  static constexpr int kGgufType = 39;
  static constexpr int kGroup = 32;

  /// Twice the value of a code, an integer.
  RIDGE_HD static int doubled(int code) {
    static constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return kDoubled[code];
  }
  RIDGE_HD static void decode(const Block& block, float* out) {
    const float half = half_scale(block.exponent);
    for (int i = 0; i < 16; ++i) {
      out[i] = half * float(doubled(block.q[i] & 0xF));
      out[i + 16] = half * float(doubled(block.q[i] >> 4));
    }
  }
  /// 2^(exponent - 128), subnormal for exponents 0 and 1.
  RIDGE_HD static float half_scale(int exponent) {
    return std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : uint32_t(exponent - 1) << 23);
  }
  static void set_scale(Block& block, float scale) { block.exponent = uint8_t(std::ilogb(scale) + 127); }
};
static_assert(sizeof(MXFP4::Block) == 17);

}  // namespace ridge
