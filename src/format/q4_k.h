// q4_k: 4-bit codes in super-blocks of 256, 6-bit scale and minimum per 32 weights, 4.5 bits per weight. GGUF type 12.
//
// value = d s_j code - dmin m_j for sub-block j; format/k_quant.h says how s_j and m_j lie in the 12 bytes of scales.
// Sub-blocks 2c and 2c + 1 are the low and the high nibbles of bytes 32c .. 32c + 31 of q. The encoder searches scale
// and minimum of every sub-block by least squares; its square error stays below that of plain minimum and maximum.
// Source: GGUF, block_q4_K.
#pragma once

#include "format/k_quant.h"

namespace ridge {

struct Q4_K {
  struct Block {
    uint16_t d;     // fp16, of the scales
    uint16_t dmin;  // fp16, of the minima
    uint8_t scales[12];
    uint8_t q[128];
  };
  static constexpr const char* kName = "q4_k";
  static constexpr int kGgufType = 12;
  static constexpr int kGroup = kSuperGroup;

  RIDGE_HD static void decode_part(const Block& block, int part, float* out) {
    decode_sub_block(block, part, out, [&](int i) { return sub_block_nibble(block.q, part, i); });
  }
  RIDGE_HD static void decode(const Block& block, float* out) { decode_parts<Q4_K>(block, out); }
  static void encode(const float* in, Block& block) {
    float codes[kGroup];
    encode_super_block(in, 15, block.d, block.dmin, block.scales, codes);
    for (int i = 0; i < kGroup / 2; ++i) {
      const float* pair = codes + i / kSubGroup * 2 * kSubGroup + i % kSubGroup;
      block.q[i] = uint8_t(int(pair[0]) | int(pair[kSubGroup]) << 4);
    }
  }
};
static_assert(sizeof(Q4_K::Block) == 144);

}  // namespace ridge
