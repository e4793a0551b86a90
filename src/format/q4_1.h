// q4_1: 4-bit codes, one fp16 scale and one fp16 minimum per 32 weights, 5 bits per weight. GGUF type 3.
//
// Weight i < 16 is the low nibble of q[i], weight i >= 16 the high nibble of q[i - 16]; value = nibble * scale + min.
// The encoder takes min and (max - min) / 15 of the group, rounds both to fp16 and codes with the rounded ones.
// |error| <= scale/2 + half an ulp of min + 15 half-ulps of scale, ulps being fp16's. Source: GGUF, block_q4_1.
#pragma once

#include <algorithm>

#include "base/f16.h"
#include "format/codes.h"

namespace ridge {

struct Q4_1 {
  struct Block {
    uint16_t scale;  // fp16
    uint16_t min;    // fp16
    uint8_t q[16];
  };
  static constexpr const char* kName = "q4_1";
  static constexpr int kGgufType = 3;
  static constexpr int kGroup = 32;

  RIDGE_HD static void decode(const Block& block, float* out) {
    const float scale = f16_to_f32(block.scale), min = f16_to_f32(block.min);
    for (int i = 0; i < 16; ++i) {
      out[i] = float(block.q[i] & 0xF) * scale + min;
      out[i + 16] = float(block.q[i] >> 4) * scale + min;
    }
  }
  static void encode(const float* in, Block& block) {
    const auto [low, high] = std::minmax_element(in, in + kGroup);
    block.scale = f32_to_f16((*high - *low) / 15);
    block.min = f32_to_f16(*low);
    const float inverse = safe_inverse(f16_to_f32(block.scale)), min = f16_to_f32(block.min);
    const auto code = [&](float w) { return nearest_code((w - min) * inverse, 0, 15); };
    for (int i = 0; i < 16; ++i) block.q[i] = uint8_t(code(in[i]) | code(in[i + 16]) << 4);
  }
};
static_assert(sizeof(Q4_1::Block) == 20);

}  // namespace ridge
