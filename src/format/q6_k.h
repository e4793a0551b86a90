// q6_k: 6-bit integers in super-blocks of 256, 8-bit scale per 16 weights, 6.5625 bits per weight. GGUF type 14.
//
// value = d * scales[i / 16] * (code - 32); exact in float, 11 + 7 + 5 bits. Weight i is in half h = i / 128, quarter
// k = i % 128 / 32 of it, at l = i % 32: its low four bits are nibble k / 2 (0 low, 1 high) of
// low[64h + 32 (k % 2) + l], its upper two are bits 2k and 2k + 1 of high[32h + l]. The encoder searches the scale of
// every 16 by least squares over several ranges, rounds the scales to eight bits with the largest at -128, and tries
// their neighbours. Source: GGUF, block_q6_K.
#pragma once

#include <cmath>

#include "base/f16.h"
#include "format/codes.h"
#include "format/k_quant.h"

namespace ridge {

struct Q6_K {
  struct Block {
    uint8_t low[128];
    uint8_t high[64];
    int8_t scales[16];
    uint16_t d;  // fp16, may be negative
  };
  static constexpr const char* kName = "q6_k";
  static constexpr int kGgufType = 14;
  static constexpr int kGroup = kSuperGroup;

  RIDGE_HD static void decode_part(const Block& block, int part, float* out) {
    const float d = f16_to_f32(block.d);
    const int half = part / 4, quarter = part % 4;
    for (int l = 0; l < kDecodePart; ++l) {
      const int low = block.low[64 * half + 32 * (quarter % 2) + l] >> (quarter / 2 * 4) & 0xF;
      const int high = block.high[32 * half + l] >> (2 * quarter) & 3;
      out[l] = d * float(block.scales[2 * part + l / 16]) * float((low | high << 4) - 32);
    }
  }
  RIDGE_HD static void decode(const Block& block, float* out) { decode_parts<Q6_K>(block, out); }
  static void encode(const float* in, Block& block) {
    float scales[16], extreme = 0;
    for (int j = 0; j < 16; ++j) {
      scales[j] = fit_scale(in + 16 * j);
      if (std::abs(scales[j]) > std::abs(extreme)) extreme = scales[j];
    }
    block = {};
    // The largest scale becomes -128, as codes go to -32: one step more on that side.
    const uint16_t step = step_f16(std::abs(extreme), 128);
    block.d = uint16_t(step | (extreme > 0 ? 0x8000 : 0));
    const float d = f16_to_f32(block.d);
    for (int j = 0; j < 16; ++j) {
      const float* x = in + 16 * j;
      float codes[16];
      const int nearest = nearest_code(scales[j] * safe_inverse(d), -128, 127);
      int best = nearest;
      float least = error_of(x, d * float(nearest), codes);
      for (const int scale : {nearest - 1, nearest + 1}) {
        if (scale < -128 || scale > 127) continue;
        const float error = error_of(x, d * float(scale), codes);
        if (error < least) least = error, best = scale;
      }
      block.scales[j] = int8_t(best);
      error_of(x, d * float(best), codes);
      for (int i = 0; i < 16; ++i) put(block, 16 * j + i, int(codes[i]));
    }
  }

 private:
  /// Square error of 16 weights under `scale`, each with its nearest code; `codes` receives code + 32.
  static float error_of(const float* x, float scale, float* codes) {
    return code_error<16>(x, 63, {scale, 32 * scale}, codes);
  }
  /// The scale of 16 weights in float, of either sign: the weight of largest magnitude at -32, then somewhat inside
  /// and outside, each improved by least squares over its codes.
  static float fit_scale(const float* x) {
    float extreme = 0;
    for (int i = 0; i < 16; ++i)
      if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
    float best = extreme / -32.0f;
    float codes[16];
    float least = error_of(x, best, codes);
    for (int i = 0; i <= 4; ++i) {
      float scale = extreme / (-30.5f - 0.5f * float(i));
      error_of(x, scale, codes);
      float sum_qx = 0, sum_qq = 0;
      for (int k = 0; k < 16; ++k) {
        const float q = codes[k] - 32;
        sum_qx += q * x[k], sum_qq += q * q;
      }
      if (!(sum_qq > 0)) continue;
      scale = sum_qx / sum_qq;
      const float error = error_of(x, scale, codes);
      if (error < least) least = error, best = scale;
    }
    return best;
  }
  /// `code` is 0 to 63.
  static void put(Block& block, int i, int code) {
    const int half = i / 128, quarter = i % 128 / 32, l = i % 32;
    block.low[64 * half + 32 * (quarter % 2) + l] |= uint8_t((code & 0xF) << (quarter / 2 * 4));
    block.high[32 * half + l] |= uint8_t(code >> 4 << (2 * quarter));
  }
};
static_assert(sizeof(Q6_K::Block) == 210);

}  // namespace ridge
