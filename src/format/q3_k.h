// q3_k: 3-bit integers in super-blocks of 256, 6-bit scale per 16 weights, 3.4375 bits per weight. GGUF type 11. Read,
// not written.
//
// value = d * (s_j - 32) * (code - 4), j = i / 16; exact in float. Weight i is in half h = i / 128, quarter k =
// i % 128 / 32 of it, at l = i % 32: the low two bits of its code are bits 2k and 2k + 1 of q[32h + l], the third is
// bit i / 32 of high[l]. The low four bits of s_j are nibble j / 8 (0 low, 1 high) of scales[j % 8], the upper two are
// bits 2 (j / 4) and 2 (j / 4) + 1 of scales[8 + j % 4]. Source: GGUF, block_q3_K.
#pragma once

#include "base/f16.h"
#include "format/codes.h"

namespace ridge {

struct Q3_K {
  struct Block {
    uint8_t high[32];
    uint8_t q[64];
    uint8_t scales[12];
    uint16_t d;  // fp16, may be negative
  };
  static constexpr const char* kName = "q3_k";
  static constexpr int kGgufType = 11;
  static constexpr int kGroup = 256;

  /// s_j - 32.
  RIDGE_HD static int scale_of(const Block& block, int j) {
    const int low = block.scales[j % 8] >> (j / 8 * 4) & 0xF, high = block.scales[8 + j % 4] >> (j / 4 * 2) & 3;
    return (low | high << 4) - 32;
  }
  RIDGE_HD static void decode_part(const Block& block, int part, float* out) {
    const float d = f16_to_f32(block.d);
    for (int i = 0; i < kDecodePart; ++i) {
      const int low = block.q[part / 4 * 32 + i] >> (part % 4 * 2) & 3;
      const int high = block.high[i] >> part & 1;
      out[i] = d * float(scale_of(block, 2 * part + i / 16)) * float((low | high << 2) - 4);
    }
  }
  RIDGE_HD static void decode(const Block& block, float* out) { decode_parts<Q3_K>(block, out); }
};
static_assert(sizeof(Q3_K::Block) == 110);

}  // namespace ridge
