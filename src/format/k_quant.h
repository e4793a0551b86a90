// Shared code of the K-quants q4_k and q5_k: 12 bytes of 6-bit scales and minima, and the search for them.
//
// A super-block is 256 weights in 8 sub-blocks of 32. Sub-block j has a 6-bit scale s_j and a 6-bit minimum m_j; with
// the super-block's fp16 d and dmin, value = d s_j code - dmin m_j. Every such value is the exact one rounded once:
// d s_j code and dmin m_j fit a float's 24 bits. Packing: for j < 4, s_j is the low six bits of byte j and m_j those of
// byte j + 4; for j >= 4 the low four bits of s_j and m_j are the nibbles of byte j + 4, and their upper two bits are
// the top two bits of bytes j - 4 and j. Source: GGUF, block_q4_K and block_q5_K.
#pragma once

#include <algorithm>

#include "base/f16.h"
#include "format/codes.h"

namespace ridge {

inline constexpr int kSuperGroup = 256;
inline constexpr int kSubGroup = 32;
inline constexpr int kSubGroups = kSuperGroup / kSubGroup;

struct ScaleMin {
  int scale = 0, min = 0;  // 0 to 63
};

RIDGE_HD inline ScaleMin unpack_scale_min(const uint8_t* packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 0xF) | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4};
}

static_assert(kSubGroup == kDecodePart);

/// Decodes sub-block j of q4_k or q5_k; code(i) gives the code of its weight i.
template <class Block, class Code>
RIDGE_HD inline void decode_sub_block(const Block& block, int j, float* out, const Code& code) {
  const ScaleMin pair = unpack_scale_min(block.scales, j);
  const float scale = f16_to_f32(block.d) * float(pair.scale), min = f16_to_f32(block.dmin) * float(pair.min);
  for (int i = 0; i < kSubGroup; ++i) out[i] = scale * float(code(i)) - min;
}
/// The low four bits of that code.
RIDGE_HD inline int sub_block_nibble(const uint8_t* q, int j, int i) {
  return q[j / 2 * kSubGroup + i] >> (j % 2 * 4) & 0xF;
}

inline void pack_scales_mins(const ScaleMin* pairs, uint8_t* packed) {
  for (int j = 0; j < 4; ++j) {
    const ScaleMin &low = pairs[j], &high = pairs[j + 4];
    packed[j] = uint8_t(low.scale | high.scale >> 4 << 6);
    packed[j + 4] = uint8_t(low.min | high.min >> 4 << 6);
    packed[j + 8] = uint8_t((high.scale & 0xF) | (high.min & 0xF) << 4);
  }
}

/// fp16 step for codes up to `top` to reach `largest`. Where fp16 has few bits left (subnormals) the next larger step,
/// so that the codes can make up for the loss of the step.
inline uint16_t step_f16(float largest, int top) {
  const float step = largest / float(top);
  const uint16_t half = f32_to_f16(step);
  return half < 0x0400 && f16_to_f32(half) < step ? uint16_t(half + 1) : half;
}

/// A sub-block coded as value = scale * code - min.
struct ScaleMinFit {
  float scale = 0, min = 0;
};

/// Square error of x[kN] under codes 0 to `top`, each the nearest one, which `codes` receives; NaN becomes code 0.
/// Plain loops without a branch, so that the compiler keeps the search in vectors.
template <int kN>
inline float code_error(const float* x, int top, ScaleMinFit fit, float* codes) {
  const float inverse = safe_inverse(fit.scale), limit = float(top);
  float squares[kN];
  for (int i = 0; i < kN; ++i) {
    const float q = std::min(limit, std::max(0.0f, (x[i] + fit.min) * inverse));
    codes[i] = float(int(q + 0.5f));
    const float off = fit.scale * codes[i] - fit.min - x[i];
    squares[i] = off * off;
  }
  for (int width = kN / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) squares[i] += squares[i + width];
  return squares[0];
}

/// Best scale and min for fixed codes, in the sense of least squares; false when the codes leave them open.
inline bool least_squares(const float* x, const float* codes, ScaleMinFit& fit) {
  float xs[8] = {}, qs[8] = {}, qqs[8] = {}, qxs[8] = {};
  for (int i = 0; i < kSubGroup; i += 8)
    for (int k = 0; k < 8; ++k) {
      const float q = codes[i + k], v = x[i + k];
      xs[k] += v, qs[k] += q, qqs[k] += q * q, qxs[k] += q * v;
    }
  double sum_x = 0, sum_q = 0, sum_qq = 0, sum_qx = 0;
  for (int k = 0; k < 8; ++k)
    sum_x += double(xs[k]), sum_q += double(qs[k]), sum_qq += double(qqs[k]), sum_qx += double(qxs[k]);
  const double determinant = kSubGroup * sum_qq - sum_q * sum_q;
  if (!(determinant > 0)) return false;
  double scale = (kSubGroup * sum_qx - sum_q * sum_x) / determinant;
  double min = (sum_q * sum_qx - sum_qq * sum_x) / determinant;
  if (min < 0) {  // a minimum above zero cannot be stored
    min = 0;
    scale = sum_qx / sum_qq;
  }
  fit = {float(scale), float(min)};
  return scale > 0;
}

/// Scale and min of one sub-block in float: the range of the weights, then ranges somewhat shorter and longer, each
/// improved by least squares over its codes; the one with the least square error wins.
inline ScaleMinFit fit_scale_min(const float* x, int top) {
  const auto [low, high] = std::minmax_element(x, x + kSubGroup);
  const float min = std::min(*low, 0.0f), range = *high - min;
  ScaleMinFit best{range / float(top), -min};
  if (!(range > 0)) return best;
  float codes[kSubGroup], unused[kSubGroup];
  float least = code_error<kSubGroup>(x, top, best, unused);
  constexpr int kTries = 5;  // scale from 1.02 to 0.82 of the range: clipping pays up to about there, more steps don't
  for (int i = 0; i < kTries; ++i) {
    ScaleMinFit fit{range / float(top) * (1.02f - 0.05f * float(i)), -min};
    code_error<kSubGroup>(x, top, fit, codes);
    if (!least_squares(x, codes, fit)) continue;
    const float error = code_error<kSubGroup>(x, top, fit, unused);
    if (error < least) least = error, best = fit;
  }
  return best;
}

/// Encodes one super-block with codes 0 to `top`. Scales and minima come from the search above, are rounded to six
/// bits, and then their neighbours are tried, because codes chosen anew make up for part of the rounding.
inline void encode_super_block(const float* in, int top, uint16_t& d, uint16_t& dmin, uint8_t* packed, float* codes) {
  ScaleMinFit fits[kSubGroups];
  float top_scale = 0, top_min = 0;
  for (int j = 0; j < kSubGroups; ++j) {
    fits[j] = fit_scale_min(in + j * kSubGroup, top);
    top_scale = std::max(top_scale, fits[j].scale);
    top_min = std::max(top_min, fits[j].min);
  }
  d = step_f16(top_scale, 63);
  dmin = step_f16(top_min, 63);
  const float scale_step = f16_to_f32(d), min_step = f16_to_f32(dmin);
  ScaleMin pairs[kSubGroups];
  for (int j = 0; j < kSubGroups; ++j) {
    const float* x = in + j * kSubGroup;
    const int scale = nearest_code(fits[j].scale * safe_inverse(scale_step), 0, 63);
    const int min = nearest_code(fits[j].min * safe_inverse(min_step), 0, 63);
    const auto stored = [&](int s, int m) { return ScaleMinFit{scale_step * float(s), min_step * float(m)}; };
    pairs[j] = {scale, min};
    float unused[kSubGroup];
    float least = code_error<kSubGroup>(x, top, stored(scale, min), unused);
    for (int s = std::max(0, scale - 1); s <= std::min(63, scale + 1); ++s)
      for (int m = std::max(0, min - 1); m <= std::min(63, min + 1); ++m) {
        const float error = code_error<kSubGroup>(x, top, stored(s, m), unused);
        if (error < least) least = error, pairs[j] = {s, m};
      }
    code_error<kSubGroup>(x, top, stored(pairs[j].scale, pairs[j].min), codes + j * kSubGroup);
  }
  pack_scales_mins(pairs, packed);
}

}  // namespace ridge
