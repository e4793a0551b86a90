// nvfp4: 4-bit floats, one 8-bit float scale per 16 weights, 4.5 bits per weight, and one float32 scale of the whole
// matrix beside them. GGUF type 40.
//
// A block has four groups of 16. Weight 16 g + i is the low nibble (i < 8) or the high nibble (i >= 8) of
// q[8 g + i % 8], a code as in mxfp4 (0 to 7: 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 the sign); scales[g] is an e4m3 code
// (format/e4m3.h). value = code * scale, exact in float; the matrix's scale multiplies results. It is NAME.scale in
// GGUF files; io/packed.h says where checkpoints have it. A scale of 0x7F or 0xFF is no number.
//
// The encoder takes weights in units of the matrix's scale, which is the matrix's largest magnitude / 2688: 6 under the
// largest scale, 448. Of each group it tries the e4m3 code nearest to the largest magnitude / 6, the two codes below
// it, which clamp, and the six above it: there the largest weight can be a 4, below which steps are finer. The scale of
// least square error wins, the smaller one of equals. Weights are rounded to the nearest code, ties to the even one:
// |error| <= scale up to 6 scales. The mean square error of a group is at most the square of the first scale tried, or
// of 3/512 where that is larger. Groups beyond 6 * 464 get the scale 0x7F, which encode_rows() refuses.
// Source: GGUF, block_nvfp4; NVIDIA's ModelOpt.
#pragma once

#include <algorithm>
#include <cmath>

#include "format/e4m3.h"
#include "format/mxfp4.h"

namespace ridge {

struct NVFP4 {
  struct Block {
    uint8_t scales[4];
    uint8_t q[32];
  };
  static constexpr const char* kName = "nvfp4";
  static constexpr int kGgufType = 40;
  static constexpr int kGroup = 64;
  static constexpr float kLargest = 6 * 448;

  RIDGE_HD static int code(const Block& block, int i) { return block.q[i / 16 * 8 + i % 8] >> (i / 8 % 2 * 4) & 0xF; }
  RIDGE_HD static void put_code(int code, int i, Block& block) {
    block.q[i / 16 * 8 + i % 8] |= uint8_t(code << (i / 8 % 2 * 4));
  }
  RIDGE_HD static void decode(const Block& block, float* out) {
    for (int i = 0; i < kGroup; ++i)
      out[i] = float(MXFP4::doubled(code(block, i))) * (128 * f16_to_f32(e4m3_as_f16(block.scales[i / 16])));
  }
  static const char* problem(const Block& block) {
    return std::ranges::any_of(block.scales, e4m3_is_nan) ? "a scale is no number" : nullptr;
  }
  static void encode(const float* in, Block& block) {
    block = {};
    for (int g = 0; g < 4; ++g) {
      const float* const x = in + 16 * g;
      const int scale = fit_scale(x);
      block.scales[g] = uint8_t(scale);
      for (int i = 0; i < 16; ++i) {
        const int code = nearest_code(std::abs(x[i]), e4m3_value(scale));
        put_code(code > 0 && x[i] < 0 ? code | 8 : code, 16 * g + i, block);
      }
    }
  }
  /// The nearest scale that is not 0.
  static void set_scale(Block& block, float scale) {
    std::ranges::fill(block.scales, uint8_t(std::clamp(e4m3_nearest(scale), 1, 0x7E)));
  }

 private:
  static int nearest_code(float magnitude, float scale) {
    int code = 0;
    for (int i = 0; i < 7; ++i) code += is_above(magnitude, scale, i);
    return code;
  }
  /// Whether a magnitude is rounded up to code i + 1 or beyond. All products are exact.
  static bool is_above(float magnitude, float scale, int i) {
    constexpr float kMiddles[7] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};
    return i % 2 == 0 ? magnitude > kMiddles[i] * scale : magnitude >= kMiddles[i] * scale;
  }
  /// Square error of 16 weights under `scale`. Plain loops without a branch, so that the compiler vectorises them.
  static float square_error(const float* x, float scale) {
    float off[16], squares[4] = {};
    for (int i = 0; i < 16; ++i) off[i] = std::abs(x[i]);
    for (int code = 0; code < 7; ++code) {
      const float step = 0.5f * float(MXFP4::doubled(code + 1) - MXFP4::doubled(code)) * scale;
      for (int i = 0; i < 16; ++i) off[i] -= is_above(std::abs(x[i]), scale, code) ? step : 0.0f;
    }
    for (int i = 0; i < 16; ++i) squares[i % 4] += off[i] * off[i];
    return squares[0] + squares[1] + squares[2] + squares[3];
  }
  /// The e4m3 code of the scale of 16 weights.
  static int fit_scale(const float* x) {
    float largest = 0;
    for (int i = 0; i < 16; ++i) largest = std::max(largest, std::abs(x[i]));
    const int nearest = e4m3_nearest(largest / 6);
    if (nearest > 0x7E) return 0x7F;
    int best = 0;
    float least = INFINITY;
    for (int code = std::max(1, nearest - 2); code <= std::min(0x7E, nearest + 6); ++code) {
      const float error = square_error(x, e4m3_value(code));
      if (error < least) least = error, best = code;
    }
    return best;
  }
};
static_assert(sizeof(NVFP4::Block) == 36);

}  // namespace ridge
