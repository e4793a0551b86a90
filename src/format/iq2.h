// iq2_xxs, iq2_xs and iq2_s: eight weights are a point of a grid of levels 8, 25 and 43, with signs. Read, not written.
//
// Super-blocks of 256 with one fp16 scale d; value = d * (s + 0.5) / 4 * level, with its sign, exact in float; s is a
// 4-bit scale. Eight weights share a point (format/iq_grids.h) and a byte of signs, bit k set for a negative weight k.
// Where only seven bits are stored the eighth makes the number of negative weights even.
//   iq2_xxs: 256 points, 2.0625 bits per weight, GGUF type 16. q[8j] to q[8j + 7] are for 32 weights: four points of
//            eight bits, then 28 bits of signs, seven for each point, and s in the upper four bits.
//   iq2_xs:  512 points, 2.3125 bits per weight, GGUF type 17. q[g] is for eight weights: nine bits of point, seven of
//            signs. Nibble j % 2 of scales[j / 2] is s of 16 weights.
//   iq2_s:   1024 points, 2.5625 bits per weight, GGUF type 22. The point of eight weights g is q[g] and, as bits 8 and
//            9, bits 2 (g % 4) and 2 (g % 4) + 1 of high[g / 4]; their signs are signs[g]; s as in iq2_xs.
// Source: GGUF, block_iq2_xxs, block_iq2_xs and block_iq2_s.
#pragma once

#include "base/f16.h"
#include "format/iq_grids.h"

namespace ridge {

/// Seven bits of signs and the one that makes the number of those set even.
RIDGE_HD inline int even_signs(int seven) {
  int parity = seven ^ seven >> 4;
  parity ^= parity >> 2;
  return seven | ((parity ^ parity >> 1) & 1) << 7;
}
/// The 4-bit scale of 16 weights j.
RIDGE_HD inline float iq2_scale(uint16_t d, const uint8_t* scales, int j) {
  return f16_to_f32(d) * (float(scales[j / 2] >> (j % 2 * 4) & 0xF) + 0.5f) * 0.25f;
}
/// Eight weights.
RIDGE_HD inline void decode_iq2(int word, int signs, float scale, float* out) {
  for (int k = 0; k < 8; ++k) {
    const int digit = word >> (2 * k) & 3, level = 8 + 17 * digit + digit / 2;
    out[k] = scale * float(signs >> k & 1 ? -level : level);
  }
}

struct IQ2_XXS {
  struct Block {
    uint16_t d;  // fp16
    uint8_t q[64];
  };
  static constexpr const char* kName = "iq2_xxs";
  static constexpr int kGgufType = 16;
  static constexpr int kGroup = 256;

  RIDGE_HD static void decode(const Block& block, float* out) {
    for (int j = 0; j < 8; ++j) {
      const uint8_t* const q = block.q + 8 * j;
      const uint32_t signs = q[4] | q[5] << 8 | q[6] << 16 | uint32_t(q[7]) << 24;
      const float scale = f16_to_f32(block.d) * (float(signs >> 28) + 0.5f) * 0.25f;
      for (int g = 0; g < 4; ++g)
        decode_iq2(iq2_xxs_word(q[g]), even_signs(int(signs >> (7 * g) & 127)), scale, out + 32 * j + 8 * g);
    }
  }
};
static_assert(sizeof(IQ2_XXS::Block) == 66);

struct IQ2_XS {
  struct Block {
    uint16_t d;  // fp16
    uint16_t q[32];
    uint8_t scales[8];
  };
  static constexpr const char* kName = "iq2_xs";
  static constexpr int kGgufType = 17;
  static constexpr int kGroup = 256;

  RIDGE_HD static void decode(const Block& block, float* out) {
    for (int g = 0; g < 32; ++g)
      decode_iq2(iq2_xs_word(block.q[g] & 511), even_signs(block.q[g] >> 9), iq2_scale(block.d, block.scales, g / 2),
                 out + 8 * g);
  }
};
static_assert(sizeof(IQ2_XS::Block) == 74);

struct IQ2_S {
  struct Block {
    uint16_t d;  // fp16
    uint8_t q[32];
    uint8_t signs[32];
    uint8_t high[8];
    uint8_t scales[8];
  };
  static constexpr const char* kName = "iq2_s";
  static constexpr int kGgufType = 22;
  static constexpr int kGroup = 256;

  RIDGE_HD static void decode(const Block& block, float* out) {
    for (int g = 0; g < 32; ++g) {
      const int point = block.q[g] | (block.high[g / 4] >> (g % 4 * 2) & 3) << 8;
      decode_iq2(iq2_s_word(point), block.signs[g], iq2_scale(block.d, block.scales, g / 2), out + 8 * g);
    }
  }
};
static_assert(sizeof(IQ2_S::Block) == 82);

}  // namespace ridge
