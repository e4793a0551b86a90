// q4_0: 4-bit integers, one fp16 scale per 32 weights, 4.5 bits per weight. GGUF type 2.
//
// Weight i < 16 is the low nibble of q[i], weight i >= 16 the high nibble of q[i - 16]; value = (nibble - 8) * scale.
// The encoder takes the weight of largest magnitude, m, and scale = m / -8, so that m itself lands on -8 exactly (up to
// the fp16 rounding of the scale) whatever its sign; the other end of the range is 7 * |scale|. Codes are floor(w /
// scale + 8.5) with the scale before it is rounded, clamped to 0 .. 15. |error| <= |scale|/2 inside, one |scale| at the
// end opposite to m, plus 8 half-ulps of the fp16 scale. Source: GGUF, block_q4_0.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/f16.h"

namespace ridge {

struct Q4_0 {
  struct Block {
    uint16_t scale;  // fp16, may be negative
    uint8_t q[16];
  };
  static constexpr const char* kName = "q4_0";
  static constexpr int kGgufType = 2;
  static constexpr int kGroup = 32;

  RIDGE_HD static void decode(const Block& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int i = 0; i < 16; ++i) {
      out[i] = float((block.q[i] & 0xF) - 8) * scale;
      out[i + 16] = float((block.q[i] >> 4) - 8) * scale;
    }
  }
  RIDGE_HD static void encode(const float* in, Block& block) {
    float extreme = 0, top = 0;  // |extreme|; computed anew, it is extreme itself behind clang 19's first weight
    for (int i = 0; i < kGroup; ++i)
      if (std::abs(in[i]) > top) {
        extreme = in[i];
        top = std::abs(extreme);
      }
    const float scale = extreme / -8.0f;
    const float inverse = std::abs(scale) > 1e-38f ? 1.0f / scale : 0.0f;  // below, fp16 has no scale but 0 anyway
    block.scale = f32_to_f16(scale);
    const auto nibble = [&](float w) { return uint8_t(std::clamp(int(w * inverse + 8.5f), 0, 15)); };
    for (int i = 0; i < 16; ++i) block.q[i] = uint8_t(nibble(in[i]) | nibble(in[i + 16]) << 4);
  }
};
static_assert(sizeof(Q4_0::Block) == 18);

}  // namespace ridge
