// iq4_nl and iq4_xs: 4-bit codes of 16 uneven levels. Read, not written.
//
// The levels, of code 0 to 15: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113. Of 32 weights, weight i < 16
// has the low nibble of byte i, weight i >= 16 the high nibble of byte i - 16. Values are exact in float.
//   iq4_nl: one fp16 scale per 32 weights, 4.5 bits per weight, GGUF type 20; value = d * level.
//   iq4_xs: super-blocks of 256 with a 6-bit scale s_j per 32 weights, 4.25 bits per weight, GGUF type 23; value =
//           d * (s_j - 32) * level. The low four bits of s_j are nibble j % 2 of scales[j / 2], the upper two are bits
//           2j and 2j + 1 of high.
// Source: GGUF, block_iq4_nl and block_iq4_xs.
#pragma once

#include "base/f16.h"

namespace ridge {

RIDGE_HD inline int iq4_level(int code) {
  static constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return kLevels[code];
}
/// 32 weights.
RIDGE_HD inline void decode_iq4(const uint8_t* q, float scale, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * float(iq4_level(q[i] & 0xF));
    out[i + 16] = scale * float(iq4_level(q[i] >> 4));
  }
}

struct IQ4_NL {
  struct Block {
    uint16_t d;  // fp16
    uint8_t q[16];
  };
  static constexpr const char* kName = "iq4_nl";
  static constexpr int kGgufType = 20;
  static constexpr int kGroup = 32;

  RIDGE_HD static void decode(const Block& block, float* out) { decode_iq4(block.q, f16_to_f32(block.d), out); }
};
static_assert(sizeof(IQ4_NL::Block) == 18);

struct IQ4_XS {
  struct Block {
    uint16_t d;  // fp16
    uint16_t high;
    uint8_t scales[4];
    uint8_t q[128];
  };
  static constexpr const char* kName = "iq4_xs";
  static constexpr int kGgufType = 23;
  static constexpr int kGroup = 256;

  /// s_j - 32.
  RIDGE_HD static int scale_of(const Block& block, int j) {
    return ((block.scales[j / 2] >> (j % 2 * 4) & 0xF) | (block.high >> (2 * j) & 3) << 4) - 32;
  }
  RIDGE_HD static void decode(const Block& block, float* out) {
    for (int j = 0; j < 8; ++j)
      decode_iq4(block.q + 16 * j, f16_to_f32(block.d) * float(scale_of(block, j)), out + 32 * j);
  }
};
static_assert(sizeof(IQ4_XS::Block) == 136);

}  // namespace ridge
