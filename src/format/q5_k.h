// q5_k: 5-bit codes in super-blocks of 256, 6-bit scale and minimum per 32 weights, 5.5 bits per weight. GGUF type 13.
//
// value = d s_j code - dmin m_j for sub-block j (format/k_quant.h). The low four bits of the codes lie as in q4_k; bit
// 4 of weight i of sub-block j is bit j of high[i]. The encoder is q4_k's with 31 for 15. Source: GGUF, block_q5_K.
#pragma once

#include "format/k_quant.h"

namespace ridge {

struct Q5_K {
  struct Block {
    uint16_t d;     // fp16, of the scales
    uint16_t dmin;  // fp16, of the minima
    uint8_t scales[12];
    uint8_t high[32];
    uint8_t q[128];
  };
  static constexpr const char* kName = "q5_k";
  static constexpr int kGgufType = 13;
  static constexpr int kGroup = kSuperGroup;

  RIDGE_HD static void decode_part(const Block& block, int part, float* out) {
    decode_sub_block(block, part, out,
                     [&](int i) { return sub_block_nibble(block.q, part, i) | (block.high[i] >> part & 1) << 4; });
  }
  RIDGE_HD static void decode(const Block& block, float* out) { decode_parts<Q5_K>(block, out); }
  static void encode(const float* in, Block& block) {
    float codes[kGroup];
    block = {};
    encode_super_block(in, 31, block.d, block.dmin, block.scales, codes);
    for (int j = 0; j < kSubGroups; ++j)
      for (int i = 0; i < kSubGroup; ++i) {
        const int code = int(codes[j * kSubGroup + i]);
        block.q[j / 2 * kSubGroup + i] |= uint8_t((code & 0xF) << (j % 2 * 4));
        block.high[i] |= uint8_t(code >> 4 << j);
      }
  }
};
static_assert(sizeof(Q5_K::Block) == 176);

}  // namespace ridge
