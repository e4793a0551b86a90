// fp8_g32: floats of 8 bits, one float32 scale per 32 weights, 9 bits per weight. Read, not written; no GGUF type.
//
// Weight i is q[i], an e4m3 code (format/e4m3.h); value = (code / 256) * (256 * scale), where both factors are exact in
// float, so that a weight is rounded once. Checkpoints in FP8 become these blocks when they are loaded (io/packed.h):
// a scale of 128 x 128 weights, of a row or of a matrix is then that of every 32 weights under it. Codes 0x7F and 0xFF
// decode to 480 and -480 times the scale. Source: our own; FP8 checkpoints hold the same numbers.
#pragma once

#include "format/e4m3.h"

namespace ridge {

struct FP8_G32 {
  struct Block {
    float scale;
    uint8_t q[32];
  };
  static constexpr const char* kName = "fp8_g32";
  static constexpr int kGroup = 32;

  RIDGE_HD static void decode(const Block& block, float* out) {
    const float scale = 256 * block.scale;
    for (int i = 0; i < kGroup; ++i) out[i] = f16_to_f32(e4m3_as_f16(block.q[i])) * scale;
  }
  static void set_scale(Block& block, float scale) { block.scale = scale; }
};
static_assert(sizeof(FP8_G32::Block) == 36);

}  // namespace ridge
