// iq3_xxs and iq3_s: four weights are a point of a grid of eight levels, with signs. Read, not written.
//
// Super-blocks of 256 with one fp16 scale d and a 4-bit scale s per 32 weights; values are exact in float. Four weights
// share a point (format/iq_grids.h), eight a byte of signs as in iq2.
//   iq3_xxs: 256 points of levels 4 12 20 28 36 44 52 62, 3.0625 bits per weight, GGUF type 18; value =
//            d * (s + 0.5) / 2 * level. q[g] is the point of four weights. signs[4j] to signs[4j + 3] are 28 bits of
//            signs of 32 weights, seven for every eight, and s in the upper four bits.
//   iq3_s:   512 points of levels 1 3 5 7 9 11 13 15, 3.4375 bits per weight, GGUF type 21; value =
//            d * (2 s + 1) * level. The point of four weights g is q[g] and, as bit 8, bit g % 8 of high[g / 8].
//            signs[i / 8] are the signs, nibble j % 2 of scales[j / 2] is s.
// Source: GGUF, block_iq3_xxs and block_iq3_s.
#pragma once

#include "format/iq2.h"

namespace ridge {

struct IQ3_XXS {
  struct Block {
    uint16_t d;  // fp16
    uint8_t q[64];
    uint8_t signs[32];
  };
  static constexpr const char* kName = "iq3_xxs";
  static constexpr int kGgufType = 18;
  static constexpr int kGroup = 256;

  RIDGE_HD static void decode(const Block& block, float* out) {
    for (int j = 0; j < 8; ++j) {
      const uint8_t* const s = block.signs + 4 * j;
      const uint32_t word = s[0] | s[1] << 8 | s[2] << 16 | uint32_t(s[3]) << 24;
      const float scale = f16_to_f32(block.d) * (float(word >> 28) + 0.5f) * 0.5f;
      for (int i = 0; i < 32; ++i) {
        const int digit = iq3_xxs_word(block.q[8 * j + i / 4]) >> (i % 4 * 3) & 7,
                  level = 4 + 8 * digit + digit / 7 * 2;
        const int signs = even_signs(int(word >> (i / 8 * 7) & 127));
        out[32 * j + i] = scale * float(signs >> (i % 8) & 1 ? -level : level);
      }
    }
  }
};
static_assert(sizeof(IQ3_XXS::Block) == 98);

struct IQ3_S {
  struct Block {
    uint16_t d;  // fp16
    uint8_t q[64];
    uint8_t high[8];
    uint8_t signs[32];
    uint8_t scales[4];
  };
  static constexpr const char* kName = "iq3_s";
  static constexpr int kGgufType = 21;
  static constexpr int kGroup = 256;

  RIDGE_HD static void decode(const Block& block, float* out) {
    for (int i = 0; i < kGroup; ++i) {
      const int g = i / 4, point = block.q[g] | (block.high[g / 8] >> (g % 8) & 1) << 8;
      const int level = 2 * (iq3_s_word(point) >> (i % 4 * 3) & 7) + 1;
      const int scale = 2 * (block.scales[i / 64] >> (i / 32 % 2 * 4) & 0xF) + 1;
      out[i] = f16_to_f32(block.d) * float(scale) * float(block.signs[i / 8] >> (i % 8) & 1 ? -level : level);
    }
  }
};
static_assert(sizeof(IQ3_S::Block) == 110);

}  // namespace ridge
