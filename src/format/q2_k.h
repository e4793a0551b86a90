// q2_k: 2-bit integers in super-blocks of 256, 4-bit scale and minimum per 16 weights, 2.625 bits per weight. GGUF type
// 10. Read, not written.
//
// value = d * s_j * code - dmin * m_j, j = i / 16; s_j is the low and m_j the high nibble of scales[j]. Weight i is in
// half h = i / 128, quarter k = i % 128 / 32 of it, at l = i % 32: its code is bits 2k and 2k + 1 of q[32h + l]. Every
// value is the exact one rounded once. Source: GGUF, block_q2_K.
#pragma once

#include "base/f16.h"
#include "format/codes.h"

namespace ridge {

struct Q2_K {
  struct Block {
    uint8_t scales[16];
    uint8_t q[64];
    uint16_t d;     // fp16
    uint16_t dmin;  // fp16
  };
  static constexpr const char* kName = "q2_k";
  static constexpr int kGgufType = 10;
  static constexpr int kGroup = 256;

  RIDGE_HD static void decode_part(const Block& block, int part, float* out) {
    const float d = f16_to_f32(block.d), dmin = f16_to_f32(block.dmin);
    for (int i = 0; i < kDecodePart; ++i) {
      const int pair = block.scales[2 * part + i / 16], code = block.q[part / 4 * 32 + i] >> (part % 4 * 2) & 3;
      out[i] = d * float(pair & 0xF) * float(code) - dmin * float(pair >> 4);
    }
  }
  RIDGE_HD static void decode(const Block& block, float* out) { decode_parts<Q2_K>(block, out); }
};
static_assert(sizeof(Q2_K::Block) == 84);

}  // namespace ridge
