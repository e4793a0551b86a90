// gpu/tensor.h's mma for a GPU that has dot products of words in place of it: the arithmetic of one lane,
// plain C++. gpu/hip_shim.h gives it RDNA3's instructions.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace ridge::gpu {

/// d += A B of one lane, in the fragments of gpu/tensor.h. Lane 4 r + c sums rows r and r + 8 in columns 2c and 2c + 1:
/// its words of A are in its own four lanes, its words of B in the four lanes of each column.
/// words.template a<i, quad>(): word i of A of lane 4 r + quad; words.b(i, lane): word i of B of any lane;
/// dot(x, y, sum): sum + the products of two words' elements.
template <int kQuad = 0, class Sum, class WordsOf, class Dot>
RIDGE_HD inline __attribute__((always_inline)) void mma_by_dots(int lane, Sum (&d)[4], const WordsOf& words, Dot dot) {
  for (int column = 0; column < 2; ++column) {
    const int from = 4 * (lane % 4 * 2 + column) + kQuad;
    const uint32_t b0 = words.b(0, from), b1 = words.b(1, from);
    d[column] = dot(words.template a<0, kQuad>(), b0, d[column]);
    d[column] = dot(words.template a<2, kQuad>(), b1, d[column]);
    d[2 + column] = dot(words.template a<1, kQuad>(), b0, d[2 + column]);
    d[2 + column] = dot(words.template a<3, kQuad>(), b1, d[2 + column]);
  }
  if constexpr (kQuad < 3) mma_by_dots<kQuad + 1>(lane, d, words, dot);
}

/// Computes gpu/tensor.h's mma_u8s8_k16() as mma_by_dots() does: K = 16, a word of B and two of A.
template <int kQuad = 0, class Sum, class WordsOf, class Dot>
RIDGE_HD inline __attribute__((always_inline)) void mma_by_dots_k16(int lane, Sum (&d)[4], const WordsOf& words,
                                                                    Dot dot) {
  for (int column = 0; column < 2; ++column) {
    const uint32_t b = words.b(0, 4 * (lane % 4 * 2 + column) + kQuad);
    d[column] = dot(words.template a<0, kQuad>(), b, d[column]);
    d[2 + column] = dot(words.template a<1, kQuad>(), b, d[2 + column]);
  }
  if constexpr (kQuad < 3) mma_by_dots_k16<kQuad + 1>(lane, d, words, dot);
}

/// The selector of select_bytes() with a byte in place of each nibble of its low half, bit 3 cleared.
RIDGE_HD constexpr uint32_t byte_selector(uint32_t nibbles) {
  const uint32_t pairs = (nibbles & 0xFFu) | (nibbles << 8 & 0xFF0000u);
  return (pairs & 0x00070007u) | (pairs << 4 & 0x07000700u);
}

}  // namespace ridge::gpu
