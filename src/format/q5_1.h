// q5_1: 5-bit codes, one fp16 scale and one fp16 minimum per 32 weights, 6 bits per weight. GGUF type 7.
//
// Codes lie as in q5_0; value = code * scale + min. The encoder takes min and (max - min) / 31 of the group, rounds
// both to fp16 and codes with the rounded ones. |error| <= scale/2 + half an ulp of min + 31 half-ulps of scale, ulps
// being fp16's. Source: GGUF, block_q5_1.
#pragma once

#include <algorithm>

#include "base/f16.h"
#include "format/codes.h"

namespace ridge {

struct Q5_1 {
  struct Block {
    uint16_t scale;  // fp16
    uint16_t min;    // fp16
    uint8_t high[4];
    uint8_t q[16];
  };
  static constexpr const char* kName = "q5_1";
  static constexpr int kGgufType = 7;
  static constexpr int kGroup = 32;

  RIDGE_HD static void decode(const Block& block, float* out) {
    const float scale = f16_to_f32(block.scale), min = f16_to_f32(block.min);
    for (int i = 0; i < kGroup; ++i) out[i] = float(five_bit_code(block.q, block.high, i)) * scale + min;
  }
  static void encode(const float* in, Block& block) {
    const auto [low, high] = std::minmax_element(in, in + kGroup);
    block = {};
    block.scale = f32_to_f16((*high - *low) / 31);
    block.min = f32_to_f16(*low);
    const float inverse = safe_inverse(f16_to_f32(block.scale)), min = f16_to_f32(block.min);
    for (int i = 0; i < kGroup; ++i)
      put_five_bit_code(nearest_code((in[i] - min) * inverse, 0, 31), i, block.q, block.high);
  }
};
static_assert(sizeof(Q5_1::Block) == 24);

}  // namespace ridge
