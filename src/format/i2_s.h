// i2_s: Microsoft's ternary weights, 2 bits each, one f32 scale per tensor. GGUF type 36 in bitnet.cpp's files (an id
// that llama.cpp retired). Also what ternary matrices are in memory, and what int8 activations meet
// (op/gemv/ternary.h).
//
// The x86 layout: weight 32 k + m (k < 4, m < 32) of a group of 128 is bits 6-2k..7-2k of byte m; value = code - 1,
// code 3 does not occur. Blocks hold no scale: after the tensor's last block come the f32 scale and 28 unused bytes.
// decode and encode therefore speak of weights in units of the scale: encode rounds to the nearest of -1, 0, 1. Files
// made on ARM have groups of 64 and the same type id; nothing in a file tells them apart, so they are not supported.
// Code 3 is refused on loading. Source: the files of Microsoft's bitnet.cpp.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace ridge {

struct I2_S {
  struct Block {
    uint8_t q[32];
  };
  static constexpr const char* kName = "i2_s";
  static constexpr int kGgufType = 36;
  static constexpr int kGroup = 128;
  static constexpr int kTailBytes = 32;

  RIDGE_HD static void decode(const Block& block, float* out) {
    for (int k = 0; k < 4; ++k)
      for (int m = 0; m < 32; ++m) out[32 * k + m] = float((block.q[m] >> (6 - 2 * k) & 3) - 1);
  }
  static void encode(const float* in, Block& block) {
    for (int m = 0; m < 32; ++m) {
      int byte = 0;
      for (int k = 0; k < 4; ++k) {
        const float weight = in[32 * k + m];
        byte = byte << 2 | (1 + (weight > 0.5f) - (weight < -0.5f));  // ties to even: 0.5 is 0
      }
      block.q[m] = uint8_t(byte);
    }
  }
  static const char* problem(const Block& block) {
    int threes = 0;
    for (const uint8_t byte : block.q) threes |= byte & byte >> 1 & 0x55;
    return threes ? "a code is 3 (ternary codes are 0, 1 and 2)" : nullptr;
  }
};
static_assert(sizeof(I2_S::Block) == 32);

}  // namespace ridge
