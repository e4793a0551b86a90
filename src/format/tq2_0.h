// tq2_0: ternary weights, 2 bits each, one fp16 scale per 256, 2.0625 bits per weight. GGUF type 35.
//
// Weight 128 h + 32 k + m (h < 2, k < 4, m < 32) is bits 2k..2k+1 of byte 32 h + m; value = (code - 1) * scale, code 3
// does not occur. The encoder takes the scale of least squared error (format/ternary.h), which keeps weights that are
// ternary already; |error| <= max|w| for all others. Code 3 and a scale that is not finite are refused on loading.
// Source: GGUF, block_tq2_0.
#pragma once

#include "format/ternary.h"

namespace ridge {

struct TQ2_0 {
  struct Block {
    uint8_t q[64];
    uint16_t scale;  // fp16
  };
  static constexpr const char* kName = "tq2_0";
  static constexpr int kGgufType = 35;
  static constexpr int kGroup = 256;

  RIDGE_HD static void decode(const Block& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int half = 0; half < 2; ++half)
      for (int k = 0; k < 4; ++k)
        for (int m = 0; m < 32; ++m)
          out[128 * half + 32 * k + m] = float((block.q[32 * half + m] >> (2 * k) & 3) - 1) * scale;
  }
  static void encode(const float* in, Block& block) {
    block.scale = best_ternary_scale(in);
    const float scale = f16_to_f32(block.scale);
    for (int i = 0; i < 64; ++i) {
      const float* first = in + i / 32 * 128 + i % 32;
      int byte = 0;
      for (int k = 0; k < 4; ++k) byte |= ternary_code(first[32 * k], scale) << (2 * k);
      block.q[i] = uint8_t(byte);
    }
  }
  static const char* problem(const Block& block) {
    if ((block.scale & 0x7C00) == 0x7C00) return "the scale is not a finite number";
    int threes = 0;
    for (const uint8_t byte : block.q) threes |= byte & byte >> 1 & 0x55;
    return threes ? "a code is 3 (ternary codes are 0, 1 and 2)" : nullptr;
  }
};
static_assert(sizeof(TQ2_0::Block) == 66);

}  // namespace ridge
