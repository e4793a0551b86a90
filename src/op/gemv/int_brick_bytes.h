// Device code: codes of bricks as bytes, for integer matmuls.
//
// A word of most bricks has four nibbles of row r and four of row r + 8: a mask makes bytes of the one, another mask
// makes bytes of the other, 16 times as large (five bits: 8 times, q6_k: 4 times, the bits of their second share put
// in). Bytes of weights have no sign, those of activations have one.
#pragma once

#include "op/gemv/brick_formats_cuda.h"
#include "op/gemv/int_weights_cuda.h"

namespace ridge {

/// kLower, and load(brick, chunk, lane); then rows(step, upper, lower) gives the bytes of step `step` of the chunk, of
/// columns 2c, 2c + 8, 2c + 1, 2c + 9: those of row r, and kLower times those of row r + 8. Scales begin at kScales.
template <IntKind kKind>
struct BrickBytes;

template <int kColumns>
struct NibbleBytes {
  static constexpr int kLower = 16, kScales = 8 * kColumns;
  uint4 low;

  __device__ void load(const uint8_t* brick, int chunk, int lane) { low = bricks::lane_words(brick, chunk, lane); }
  __device__ void rows(int step, uint32_t& upper, uint32_t& lower) const {
    const uint32_t word = bricks::pick(low, step);
    upper = word & 0x0F0F0F0Fu, lower = word & 0xF0F0F0F0u;
  }
};

template <int kColumns>
struct FiveBitBytes {
  using Places = bricks::FiveBits<kColumns>;
  static constexpr int kLower = Places::kLowerOf, kScales = Places::kCodeBytes;
  typename Places::Codes codes;

  __device__ void load(const uint8_t* brick, int chunk, int lane) { codes = Places::load(brick, chunk, lane); }
  __device__ void rows(int step, uint32_t& upper, uint32_t& lower) const {
    const uint32_t word = bricks::pick(codes.low, step);
    const uint32_t bits = (step < 2 ? codes.high << (3 - 2 * step) : codes.high >> (2 * step - 3)) & 0x18181818u;
    upper = gpu::select_bits<0x0F0F0F0F>(word, bits), lower = gpu::select_bits<0xF0F0F0F0>(word, bits);
  }
};

/// Codes as the f16 matmul of the brick loads them.
template <class Brick>
struct LoadedCodes {
  typename Brick::Codes codes;

  __device__ void load(const uint8_t* brick, int chunk, int lane) { codes = Brick::load(brick, chunk, lane); }
};

template <>
struct BrickBytes<IntKind::q4_k> : NibbleBytes<256> {};
template <>
struct BrickBytes<IntKind::q5_k> : FiveBitBytes<256> {};

template <>
struct BrickBytes<IntKind::q6_k> : LoadedCodes<bricks::BrickQ6_K> {
  static constexpr int kLower = 4, kScales = bricks::BrickQ6_K::kScales, kD = bricks::BrickQ6_K::kD;

  __device__ void rows(int step, uint32_t& upper, uint32_t& lower) const {
    const uint32_t word = bricks::pick(codes.low, step), high = codes.high[step / 2];
    const uint32_t bits = (step % 2 == 0 ? high << 2 : high >> 2) & 0x3C3C3C3Cu;
    upper = gpu::select_bits<0x0F0F0F0F>(word, bits), lower = gpu::select_bits<0xF0F0F0F0>(word, bits);
  }
};

// Of blocks kZero is subtracted from every code.

template <>
struct BrickBytes<IntKind::q4_0> : NibbleBytes<128> {
  static constexpr int kZero = 8;
};
template <>
struct BrickBytes<IntKind::q4_1> : NibbleBytes<128> {
  static constexpr int kZero = 0;
};
template <>
struct BrickBytes<IntKind::q5_0> : FiveBitBytes<128> {
  static constexpr int kZero = 16;
};
template <>
struct BrickBytes<IntKind::q5_1> : FiveBitBytes<128> {
  static constexpr int kZero = 0;
};

/// Bytes of elements 0 .. 3 and 4 .. 7 of a step: columns 2c and 2c + 1 of row r, then of row r + 8, and 8 columns on.
__device__ inline void rows_of_elements(uint32_t first, uint32_t second, uint32_t& upper, uint32_t& lower) {
  upper = gpu::select_bytes(first, second, 0x5140), lower = gpu::select_bytes(first, second, 0x7362);
}

template <>
struct BrickBytes<IntKind::q8_0> : LoadedCodes<bricks::BrickQ8_0> {
  static constexpr int kLower = 1, kZero = 128, kScales = 2048;

  __device__ void rows(int step, uint32_t& upper, uint32_t& lower) const {
    const uint4& words = codes.words[step / 2];
    rows_of_elements(bricks::pick(words, step % 2 * 2), bricks::pick(words, step % 2 * 2 + 1), upper, lower);
  }
};

template <>
struct BrickBytes<IntKind::iq4_nl> : LoadedCodes<bricks::BrickIQ4_NL> {
  static constexpr int kLower = 1, kZero = 128, kScales = 1024;

  __device__ void rows(int step, uint32_t& upper, uint32_t& lower) const {
    uint32_t bytes[2];
    bricks::BrickIQ4_NL::level_bytes(codes, step, bytes);
    rows_of_elements(bytes[0], bytes[1], upper, lower);
  }
};

}  // namespace ridge
