// iq4_nl and iq4_xs: 4-bit codes of 16 uneven levels.
//
// The levels, of code 0 to 15: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113. Of 32 weights, weight i < 16
// has the low nibble of byte i, weight i >= 16 the high nibble of byte i - 16. Values are exact in float.
//   iq4_nl: one fp16 scale per 32 weights, 4.5 bits per weight, GGUF type 20; value = d * level.
//   iq4_xs: super-blocks of 256 with a 6-bit scale s_j per 32 weights, 4.25 bits per weight, GGUF type 23; value =
//           d * (s_j - 32) * level. The low four bits of s_j are nibble j % 2 of scales[j / 2], the upper two are bits
//           2j and 2j + 1 of high.
// The encoder searches the scale of every 32 weights by least squares, with either sign, because the levels are not
// symmetric; iq4_xs rounds these scales to six bits, tries the neighbours, and fits d to the codes.
// Source: GGUF, block_iq4_nl and block_iq4_xs.
#pragma once

#include <algorithm>
#include <cmath>

#include "format/k_quant.h"

namespace ridge {

inline constexpr int kIq4Group = 32;

RIDGE_HD inline int iq4_level(int code) {
  static constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return kLevels[code];
}
/// 32 weights.
RIDGE_HD inline void decode_iq4(const uint8_t* q, float scale, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * float(iq4_level(q[i] & 0xF));
    out[i + 16] = scale * float(iq4_level(q[i] >> 4));
  }
}

/// 32 weights coded: the nearest level of each, before the scale.
struct Iq4Levels {
  float levels[kIq4Group];

  /// Chooses the nearest levels of x[32] under `scale`. Plain loops without a branch, so that they stay in vectors.
  void choose(const float* x, float scale) {
    const float inverse = safe_inverse(scale);
    for (float& level : levels) level = float(iq4_level(0));
    for (int code = 1; code < 16; ++code) {
      const float step = float(iq4_level(code) - iq4_level(code - 1));
      const float middle = 0.5f * float(iq4_level(code) + iq4_level(code - 1));
      for (int i = 0; i < kIq4Group; ++i) levels[i] += x[i] * inverse > middle ? step : 0.0f;
    }
  }
  float square_error(const float* x, float scale) const {
    float squares[4] = {};
    for (int i = 0; i < kIq4Group; ++i) {
      const float off = scale * levels[i] - x[i];
      squares[i % 4] += off * off;
    }
    return squares[0] + squares[1] + squares[2] + squares[3];
  }
  /// Adds <x, s level> and <s level, s level>, whose quotient is the scale on top of s with the least square error.
  void add_products(const float* x, float s, double& products, double& squares) const {
    for (int i = 0; i < kIq4Group; ++i) {
      const float level = s * levels[i];
      products += double(x[i]) * double(level), squares += double(level) * double(level);
    }
  }
  void pack(uint8_t* q) const {
    const auto code = [&](int i) {
      int found = 0;
      while (float(iq4_level(found)) < levels[i]) ++found;
      return found;
    };
    for (int i = 0; i < 16; ++i) q[i] = uint8_t(code(i) | code(i + 16) << 4);
  }
};

/// The scale of 32 weights: the weight of the largest size tried at places around either end of the levels, each scale
/// improved by least squares over its codes; the one with the least square error wins.
inline float fit_iq4(const float* x) {
  const float largest = *std::max_element(x, x + kIq4Group, [](float a, float b) { return std::abs(a) < std::abs(b); });
  float best = largest / float(iq4_level(0)), least = INFINITY;
  Iq4Levels chosen;
  for (const float place : {-135.0f, -127.0f, -119.0f, 121.0f, 113.0f, 105.0f}) {
    chosen.choose(x, largest / place);
    double products = 0, squares = 0;
    chosen.add_products(x, 1, products, squares);
    const float scale = float(products / squares), error = chosen.square_error(x, scale);
    if (error < least) least = error, best = scale;
  }
  return best;
}

struct IQ4_NL {
  struct Block {
    uint16_t d;  // fp16
    uint8_t q[16];
  };
  static constexpr const char* kName = "iq4_nl";
  static constexpr int kGgufType = 20;
  static constexpr int kGroup = 32;

  RIDGE_HD static void decode(const Block& block, float* out) { decode_iq4(block.q, f16_to_f32(block.d), out); }
  static void encode(const float* in, Block& block) {
    block.d = f32_to_f16(fit_iq4(in));
    Iq4Levels chosen;
    chosen.choose(in, f16_to_f32(block.d));
    chosen.pack(block.q);
  }
};
static_assert(sizeof(IQ4_NL::Block) == 18);

struct IQ4_XS {
  struct Block {
    uint16_t d;  // fp16
    uint16_t high;
    uint8_t scales[4];
    uint8_t q[128];
  };
  static constexpr const char* kName = "iq4_xs";
  static constexpr int kGgufType = 23;
  static constexpr int kGroup = 256;

  /// s_j - 32.
  RIDGE_HD static int scale_of(const Block& block, int j) {
    return ((block.scales[j / 2] >> (j % 2 * 4) & 0xF) | (block.high >> (2 * j) & 3) << 4) - 32;
  }
  RIDGE_HD static void decode(const Block& block, float* out) {
    for (int j = 0; j < 8; ++j)
      decode_iq4(block.q + 16 * j, f16_to_f32(block.d) * float(scale_of(block, j)), out + 32 * j);
  }
  static void encode(const float* in, Block& block) {
    constexpr int kGroups = kGroup / kIq4Group;
    float fits[kGroups], largest = 0;
    for (int j = 0; j < kGroups; ++j) {
      fits[j] = fit_iq4(in + j * kIq4Group);
      if (std::abs(fits[j]) > std::abs(largest)) largest = fits[j];
    }
    block = {.d = uint16_t(step_f16(std::abs(largest), 32) | (largest > 0 ? 0x8000 : 0))};
    const float step = f16_to_f32(block.d);
    double products = 0, squares = 0;  // of weights and what they are without d
    for (int j = 0; j < kGroups; ++j) {
      const float* x = in + j * kIq4Group;
      const int nearest = nearest_code(fits[j] * safe_inverse(step), -32, 31);
      int scale = nearest;
      Iq4Levels best;
      best.choose(x, step * float(nearest));
      float least = best.square_error(x, step * float(nearest));
      for (const int s : {nearest - 1, nearest + 1}) {
        if (s < -32 || s > 31) continue;
        Iq4Levels tried;
        tried.choose(x, step * float(s));
        const float error = tried.square_error(x, step * float(s));
        if (error < least) least = error, best = tried, scale = s;
      }
      block.scales[j / 2] = uint8_t(block.scales[j / 2] | ((scale + 32) & 0xF) << (j % 2 * 4));
      block.high = uint16_t(block.high | (scale + 32) >> 4 << (2 * j));
      best.pack(block.q + 16 * j);
      best.add_products(x, float(scale), products, squares);
    }
    Block fitted = block;
    fitted.d = f32_to_f16(float(products / squares));
    if (square_error(in, fitted) < square_error(in, block)) block = fitted;
  }
  static double square_error(const float* in, const Block& block) {
    float out[kGroup];
    decode(block, out);
    double error = 0;
    for (int i = 0; i < kGroup; ++i) error += double(out[i] - in[i]) * double(out[i] - in[i]);
    return error;
  }
};
static_assert(sizeof(IQ4_XS::Block) == 136);

}  // namespace ridge
