// q5_0: 5-bit integers, one fp16 scale per 32 weights, 5.5 bits per weight. GGUF type 6.
//
// The low four bits of weight i < 16 are the low nibble of q[i], those of weight i >= 16 the high nibble of q[i - 16];
// bit 4 of weight i is bit i % 8 of high[i / 8]. value = (code - 16) * scale. The encoder takes the weight of largest
// magnitude, m, and scale = m / -16, as q4_0 does with 8: |error| <= |scale|/2 inside, one |scale| at the end opposite
// to m, plus the fp16 rounding of the scale. Source: GGUF, block_q5_0.
#pragma once

#include <cmath>

#include "base/f16.h"
#include "format/codes.h"

namespace ridge {

struct Q5_0 {
  struct Block {
    uint16_t scale;  // fp16, may be negative
    uint8_t high[4];
    uint8_t q[16];
  };
  static constexpr const char* kName = "q5_0";
  static constexpr int kGgufType = 6;
  static constexpr int kGroup = 32;

  RIDGE_HD static void decode(const Block& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int i = 0; i < kGroup; ++i) out[i] = float(five_bit_code(block.q, block.high, i) - 16) * scale;
  }
  static void encode(const float* in, Block& block) {
    float extreme = 0;
    for (int i = 0; i < kGroup; ++i)
      if (std::abs(in[i]) > std::abs(extreme)) extreme = in[i];
    block = {};
    block.scale = f32_to_f16(extreme / -16.0f);
    const float inverse = safe_inverse(extreme / -16.0f);
    for (int i = 0; i < kGroup; ++i)
      put_five_bit_code(nearest_code(in[i] * inverse, -16, 15) + 16, i, block.q, block.high);
  }
};
static_assert(sizeof(Q5_0::Block) == 22);

}  // namespace ridge
