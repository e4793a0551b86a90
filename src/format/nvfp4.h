// nvfp4: 4-bit floats, one 8-bit float scale per 16 weights, 4.5 bits per weight, and one float32 scale of the whole
// matrix beside them. GGUF type 40. Read, not written.
//
// A block has four groups of 16. Weight 16 g + i is the low nibble (i < 8) or the high nibble (i >= 8) of
// q[8 g + i % 8], a code as in mxfp4 (0 to 7: 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 the sign); scales[g] is an e4m3 code
// (format/e4m3.h). value = code * scale, exact in float; the matrix's scale multiplies products. It is NAME.scale in
// GGUF files; io/packed.h says where checkpoints have it. A scale of 0x7F or 0xFF is no number. Source: GGUF,
// block_nvfp4; NVIDIA's ModelOpt.
#pragma once

#include <algorithm>

#include "format/e4m3.h"
#include "format/mxfp4.h"

namespace ridge {

struct NVFP4 {
  struct Block {
    uint8_t scales[4];
    uint8_t q[32];
  };
  static constexpr const char* kName = "nvfp4";
  static constexpr int kGgufType = 40;
  static constexpr int kGroup = 64;

  RIDGE_HD static int code(const Block& block, int i) { return block.q[i / 16 * 8 + i % 8] >> (i / 8 % 2 * 4) & 0xF; }
  RIDGE_HD static void put_code(int code, int i, Block& block) {
    block.q[i / 16 * 8 + i % 8] |= uint8_t(code << (i / 8 % 2 * 4));
  }
  RIDGE_HD static void decode(const Block& block, float* out) {
    for (int i = 0; i < kGroup; ++i)
      out[i] = float(MXFP4::doubled(code(block, i))) * (128 * f16_to_f32(e4m3_as_f16(block.scales[i / 16])));
  }
  static const char* problem(const Block& block) {
    return std::ranges::any_of(block.scales, e4m3_is_nan) ? "a scale is no number" : nullptr;
  }
  /// The nearest scale that is not 0.
  static void set_scale(Block& block, float scale) {
    int nearest = 1;
    for (int code = 2; code < 0x7F; ++code)
      if (std::abs(e4m3_value(code) - scale) < std::abs(e4m3_value(nearest) - scale)) nearest = code;
    std::ranges::fill(block.scales, uint8_t(nearest));
  }
};
static_assert(sizeof(NVFP4::Block) == 36);

}  // namespace ridge
