// q8_0: signed 8-bit integers, one fp16 scale per 32 weights, 8.5 bits per weight. GGUF type 8.
//
// Weight i is q[i], value = q * scale. The encoder takes scale = max|w| / 127 in float, rounds q = round(w / scale) to
// nearest (ties away from zero, as GGUF writers do) with that float scale, and stores the scale rounded to fp16.
// |error| <= scale/2 + 127 half-ulps of the fp16 scale. Code -128 does not come from the encoder and decodes like any
// other. Source: GGUF, block_q8_0.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/f16.h"

namespace ridge {

struct Q8_0 {
  struct Block {
    uint16_t scale;  // fp16
    int8_t q[32];
  };
  static constexpr const char* kName = "q8_0";
  static constexpr int kGgufType = 8;
  static constexpr int kGroup = 32;

  RIDGE_HD static void decode(const Block& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int i = 0; i < kGroup; ++i) out[i] = float(block.q[i]) * scale;
  }
  RIDGE_HD static void encode(const float* in, Block& block) {
    float top = 0;
    for (int i = 0; i < kGroup; ++i) top = std::max(top, std::abs(in[i]));
    const float scale = top / 127.0f;
    const float inverse = scale > 1e-38f ? 1.0f / scale : 0.0f;  // below, fp16 has no scale but 0 anyway
    block.scale = f32_to_f16(scale);
    for (int i = 0; i < kGroup; ++i) block.q[i] = int8_t(std::clamp(std::round(in[i] * inverse), -127.0f, 127.0f));
  }
};
static_assert(sizeof(Q8_0::Block) == 34);

}  // namespace ridge
