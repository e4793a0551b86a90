// rotor-3's levels as signed bytes, for the tests of gpu/dot4.h: level * 52.93 rounds to these with at most 0.21 %
// error in each. (Scaling the outermost level to 127 instead would put the innermost off by 3.2 %.)
#pragma once

#include "gpu/dot4.h"

namespace ridge::gpu {

constexpr int kRotor3Bytes[8] = {-114, -71, -40, -13, 13, 40, 71, 114};
constexpr double kRotor3BytesPerLevel = 52.93;

/// sum of q * level byte over a row of 3-bit codes (code k at bits 3k .. 3k+2); head_dim a multiple of 8, q 4-aligned.
RIDGE_HOST_DEVICE inline int32_t rotor3_dot(const unsigned char* codes, const uint32_t* q, int head_dim) {
  constexpr ByteTable8 table = byte_table8(kRotor3Bytes);
  int32_t sum = 0;
  for (int first = 0; first < head_dim; first += 8, codes += 3) {
    const uint32_t word = codes[0] | uint32_t(codes[1]) << 8 | uint32_t(codes[2]) << 16;
    sum = dot4_i8(lookup4(table, word), q[first / 4], sum);
    sum = dot4_i8(lookup4(table, word >> 12), q[first / 4 + 1], sum);
  }
  return sum;
}

}  // namespace ridge::gpu
