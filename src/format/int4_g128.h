// int4_g128: 4-bit integers, one fp16 scale per 128 weights, 4.125 bits per weight. No GGUF type: it lives in
// safetensors, packed there as io/packed.h says, and becomes these blocks when it is loaded.
//
// value = (nibble - 8) * scale; weight 2i is the low nibble of q[i], weight 2i + 1 its high nibble, so that the bytes
// are also 16 little-endian words whose nibble t is weight 8j + t. The encoder takes scale = fp16(max|w| / 7) and
// nibble = 8 + round(w / scale), ties to even, clamped to 1 .. 15, with the rounded scale (1e-8 where that is smaller):
// |error| <= scale/2 + 7 half-ulps of the fp16 scale. Files made by others may hold nibble 0. Source: our own;
// symmetric GPTQ checkpoints of group 128 hold the same numbers.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/f16.h"
#include "format/codes.h"

namespace ridge {

struct Int4G128 {
  struct Block {
    uint16_t scale;  // fp16
    uint8_t q[64];
  };
  static constexpr const char* kName = "int4_g128";
  static constexpr int kGroup = 128;

  RIDGE_HD static void decode_part(const Block& block, int part, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int i = 0; i < kDecodePart / 2; ++i) {
      const int pair = block.q[kDecodePart / 2 * part + i];
      out[2 * i] = float((pair & 0xF) - 8) * scale;
      out[2 * i + 1] = float((pair >> 4) - 8) * scale;
    }
  }
  RIDGE_HD static void decode(const Block& block, float* out) { decode_parts<Int4G128>(block, out); }
  static void encode(const float* in, Block& block) {
    float top = 0;
    for (int i = 0; i < kGroup; ++i) top = std::max(top, std::abs(in[i]));
    block.scale = f32_to_f16(top / 7.0f);
    const float scale = std::max(f16_to_f32(block.scale), 1e-8f);
    const auto nibble = [&](float w) { return int(std::clamp(std::nearbyint(w / scale), -7.0f, 7.0f)) + 8; };
    for (int i = 0; i < kGroup / 2; ++i) block.q[i] = uint8_t(nibble(in[2 * i]) | nibble(in[2 * i + 1]) << 4);
  }
};
static_assert(sizeof(Int4G128::Block) == 66);

}  // namespace ridge
