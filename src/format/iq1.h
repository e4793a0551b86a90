// iq1_s and iq1_m: eight weights are a point of a grid of levels -1, 0, 1, all moved by an eighth. Read, not written.
//
// Super-blocks of 256 with one fp16 scale d; value = d * (2 s + 1) * (level + shift), exact in float; s is a 3-bit
// scale, shift is 1/8, or -1/8 where its bit is set. Eight weights g share one of 2048 points (format/iq_grids.h); the
// point's low byte is q[g].
//   iq1_s: 1.5625 bits per weight, GGUF type 19. high[j] is for 32 weights: three upper bits of the point of each
//          eight, from the lowest bits on; s in bits 12 to 14; the shift's bit is 15.
//   iq1_m: 1.75 bits per weight, GGUF type 29. Nibble g % 2 of high[g / 2]: three upper bits of the point, then the
//          shift's bit. The lower twelve bits of scales[k] are s of four times 16 weights, from the lowest bits on;
//          the upper four are bits 4k to 4k + 3 of d.
// Source: GGUF, block_iq1_s and block_iq1_m.
#pragma once

#include "base/f16.h"
#include "format/iq_grids.h"

namespace ridge {

/// Eight weights.
RIDGE_HD inline void decode_iq1(int point, bool is_negative_shift, float scale, float* out) {
  const int word = iq1_word(point);
  for (int k = 0; k < 8; ++k)
    out[k] = scale * (float((word >> (2 * k) & 3) - 1) + (is_negative_shift ? -0.125f : 0.125f));
}

struct IQ1_S {
  struct Block {
    uint16_t d;  // fp16
    uint8_t q[32];
    uint16_t high[8];
  };
  static constexpr const char* kName = "iq1_s";
  static constexpr int kGgufType = 19;
  static constexpr int kGroup = 256;

  RIDGE_HD static void decode(const Block& block, float* out) {
    for (int g = 0; g < 32; ++g) {
      const int high = block.high[g / 4];
      decode_iq1(block.q[g] | (high >> (g % 4 * 3) & 7) << 8, high >> 15,
                 f16_to_f32(block.d) * float(2 * (high >> 12 & 7) + 1), out + 8 * g);
    }
  }
};
static_assert(sizeof(IQ1_S::Block) == 50);

struct IQ1_M {
  struct Block {
    uint8_t q[32];
    uint8_t high[16];
    uint16_t scales[4];
  };
  static constexpr const char* kName = "iq1_m";
  static constexpr int kGgufType = 29;
  static constexpr int kGroup = 256;

  RIDGE_HD static void decode(const Block& block, float* out) {
    uint32_t d = 0;
    for (int k = 0; k < 4; ++k) d |= uint32_t(block.scales[k] >> 12) << (4 * k);
    for (int g = 0; g < 32; ++g) {
      const int high = block.high[g / 2] >> (g % 2 * 4), s = block.scales[g / 8] >> (g / 2 % 4 * 3) & 7;
      decode_iq1(block.q[g] | (high & 7) << 8, high >> 3 & 1, f16_to_f32(uint16_t(d)) * float(2 * s + 1), out + 8 * g);
    }
  }
  static void set_scale(Block& block, float scale) {
    for (int k = 0; k < 4; ++k)
      block.scales[k] = uint16_t((block.scales[k] & 0xFFF) | (f32_to_f16(scale) >> (4 * k) & 0xF) << 12);
  }
};
static_assert(sizeof(IQ1_M::Block) == 56);

}  // namespace ridge
