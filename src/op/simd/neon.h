// The vector operations of op/simd/avx512.h for NEON with dot products. A vector is a pair of registers, so that
// kernels have the shape of AVX2 and its order of sums: results are the same bits on both. Include only from *_neon.cpp
// files.
#pragma once

#include "op/simd/bytes_neon.h"

namespace ridge {
namespace {

struct Simd {
  static constexpr int kLanes = 8;
  static constexpr int kGemmRows = 4;  // tokens per register tile: 4 x 3 accumulators of 16 pairs of registers
  struct F {
    float32x4_t low, high;
  };
  using I = Bytes;

  static F zero() { return set1(0); }
  static F set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static F load(const void* p) {
    const Bytes bytes = bytes32(p);
    return {vreinterpretq_f32_u8(bytes.low), vreinterpretq_f32_u8(bytes.high)};
  }
  static void store(float* p, F x) {
    vst1q_f32(p, x.low);
    vst1q_f32(p + 4, x.high);
  }
  static F load_f16(const void* p) {
    const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
    return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
  }
  /// The 256th of e4m3 codes (format/e4m3.h): a sign-extended byte has its sign at bits 15 and 14 once it is moved up.
  static F load_e4m3(const void* p) {
    const int16x8_t codes = vshlq_n_s16(vmovl_s8(vld1_s8(static_cast<const int8_t*>(p))), 7);
    const float16x8_t halves = vreinterpretq_f16_s16(vandq_s16(codes, vdupq_n_s16(int16_t(0xBFFF))));
    return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
  }
  static F load_bf16(const void* p) {
    const uint16x8_t halves = vreinterpretq_u16_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)),
            vreinterpretq_f32_u32(vshll_high_n_u16(halves, 16))};
  }
  static F load_i8(const void* p) {
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(vld1_u8(static_cast<const uint8_t*>(p))));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))};
  }
  static F load_u8(const void* p) {
    const uint16x8_t wide = vmovl_u8(vld1_u8(static_cast<const uint8_t*>(p)));
    return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide))};
  }
  static F add(F a, F b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
  static F sub(F a, F b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
  static F mul(F a, F b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
  static F div(F a, F b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
  static F max(F a, F b) { return {vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high)}; }
  static F min(F a, F b) { return {vminq_f32(a.low, b.low), vminq_f32(a.high, b.high)}; }
  static F abs(F a) { return {vabsq_f32(a.low), vabsq_f32(a.high)}; }
  static F fma(F a, F b, F c) { return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
  static F round(F a) { return {vrndnq_f32(a.low), vrndnq_f32(a.high)}; }
  /// a * 2^n for integral n in [-126, 127]
  static F scale_exp2(F a, F n) {
    const int32x4_t low = vaddq_s32(vcvtq_s32_f32(n.low), vdupq_n_s32(127));
    const int32x4_t high = vaddq_s32(vcvtq_s32_f32(n.high), vdupq_n_s32(127));
    return mul(a, {vreinterpretq_f32_s32(vshlq_n_s32(low, 23)), vreinterpretq_f32_s32(vshlq_n_s32(high, 23))});
  }
  static F select_ge(F a, F b, F value) {
    const auto kept = [](uint32x4_t where, float32x4_t v) {
      return vreinterpretq_f32_u32(vandq_u32(where, vreinterpretq_u32_f32(v)));
    };
    return {kept(vcgeq_f32(a.low, b.low), value.low), kept(vcgeq_f32(a.high, b.high), value.high)};
  }
  /// How many lanes have a >= b.
  static int count_ge(F a, F b) {
    const uint32x4_t minus_one = vaddq_u32(vcgeq_f32(a.low, b.low), vcgeq_f32(a.high, b.high));
    return -vaddvq_s32(vreinterpretq_s32_u32(minus_one));
  }
  static float sum(F a) {
    const float32x4_t half = vaddq_f32(a.low, a.high);
    return vpadds_f32(vadd_f32(vget_low_f32(half), vget_high_f32(half)));
  }
  static float top(F a) { return vmaxvq_f32(vmaxq_f32(a.low, a.high)); }
  static F sum_each(const F a[8]) {
    const auto four = [](float32x4_t x, float32x4_t y, float32x4_t z, float32x4_t w) {
      return vpaddq_f32(vpaddq_f32(x, y), vpaddq_f32(z, w));
    };
    return {vaddq_f32(four(a[0].low, a[1].low, a[2].low, a[3].low), four(a[0].high, a[1].high, a[2].high, a[3].high)),
            vaddq_f32(four(a[4].low, a[5].low, a[6].low, a[7].low), four(a[4].high, a[5].high, a[6].high, a[7].high))};
  }
  static constexpr int slot(int lane) { return lane; }
  static constexpr int sum_order(int place) { return place; }
  /// Lane j of vector i becomes lane i of vector j.
  static void transpose(F v[8]) {
    float32x4_t a[4][4];  // quarters of the square: rows 0 to 3 or 4 to 7, lanes 0 to 3 or 4 to 7
    for (int i = 0; i < 4; ++i)
      a[0][i] = v[i].low, a[1][i] = v[i].high, a[2][i] = v[4 + i].low, a[3][i] = v[4 + i].high;
    for (float32x4_t(&quarter)[4] : a) transpose_quarter(quarter);
    for (int i = 0; i < 4; ++i) v[i] = {a[0][i], a[2][i]}, v[4 + i] = {a[1][i], a[3][i]};
  }
  static void store_i8(int8_t* p, F a) {
    const int16x4_t low = vqmovn_s32(vcvtnq_s32_f32(a.low)), high = vqmovn_s32(vcvtnq_s32_f32(a.high));
    vst1_s8(p, vqmovn_s16(vcombine_s16(low, high)));
  }

  static F power_of_two(const void* p) {
    const uint16x8_t e = vmovl_u8(vld1_u8(static_cast<const uint8_t*>(p)));
    const uint16x8_t half = vshrq_n_u16(e, 1), rest = vsubq_u16(e, half), bias = vdupq_n_u16(63);
    const auto power = [](uint16x4_t exponents) {
      return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(exponents), 23));
    };
    const uint16x8_t x = vaddq_u16(half, bias), y = vaddq_u16(rest, bias);
    return mul({power(vget_low_u16(x)), power(vget_high_u16(x))}, {power(vget_low_u16(y)), power(vget_high_u16(y))});
  }
  static I izero() { return iset1(0); }
  static I iset1(int32_t x) {
    const uint8x16_t all = vreinterpretq_u8_s32(vdupq_n_s32(x));
    return {all, all};
  }
  static I iload(const void* p) { return bytes32(p); }
  /// NEON multiplies signed bytes alone: a weight of 8 bits counts from 128.
  static constexpr int kDot4Zero = 128;
  static I dot4(I acc, I weights, I activations) {
    const uint8x16_t sign = vdupq_n_u8(0x80);
    return dot4_small(acc, {veorq_u8(weights.low, sign), veorq_u8(weights.high, sign)}, activations);
  }
  static I dot4_small(I acc, I weights, I activations) {
    const auto dot = [](uint8x16_t a, uint8x16_t w, uint8x16_t x) {
      return vreinterpretq_u8_s32(vdotq_s32(vreinterpretq_s32_u8(a), vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(x)));
    };
    return {dot(acc.low, weights.low, activations.low), dot(acc.high, weights.high, activations.high)};
  }
  static I iadd(I a, I b) {
    const auto add = [](uint8x16_t x, uint8x16_t y) {
      return vreinterpretq_u8_s32(vaddq_s32(vreinterpretq_s32_u8(x), vreinterpretq_s32_u8(y)));
    };
    return {add(a.low, b.low), add(a.high, b.high)};
  }
  static I ior(I a, I b) { return either(a, b); }
  static I shift_left(I a, int bits) {
    const int32x4_t by = vdupq_n_s32(bits);
    return {vreinterpretq_u8_s32(vshlq_s32(vreinterpretq_s32_u8(a.low), by)),
            vreinterpretq_u8_s32(vshlq_s32(vreinterpretq_s32_u8(a.high), by))};
  }
  static void istore(void* p, I a) { store_bytes(p, a); }
  template <int kBits>
  static I moved(I a) {
    if constexpr (kBits > 0) return {vshlq_n_u8(a.low, kBits), vshlq_n_u8(a.high, kBits)};
    if constexpr (kBits < 0) return {vshrq_n_u8(a.low, -kBits), vshrq_n_u8(a.high, -kBits)};
    return a;
  }
  template <int kMask>
  static I masked(I a) {
    return low_bits(a, kMask);
  }
  template <int kMask>
  static I joined(I a, I b) {
    const uint8x16_t mask = vdupq_n_u8(kMask);
    return {vbslq_u8(mask, a.low, b.low), vbslq_u8(mask, a.high, b.high)};
  }
  static I lookup(const uint8_t* table, I a) {
    return looked_up(reinterpret_cast<const int8_t*>(table), masked<15>(a));
  }
  static F to_float(I a) {
    return {vcvtq_f32_s32(vreinterpretq_s32_u8(a.low)), vcvtq_f32_s32(vreinterpretq_s32_u8(a.high))};
  }
  static constexpr int kPanelVectors = 2;

 private:
  static void transpose_quarter(float32x4_t (&v)[4]) {
    const auto doubles = [](float32x4_t x) { return vreinterpretq_f64_f32(x); };
    const float64x2_t even01 = doubles(vtrn1q_f32(v[0], v[1])), odd01 = doubles(vtrn2q_f32(v[0], v[1]));
    const float64x2_t even23 = doubles(vtrn1q_f32(v[2], v[3])), odd23 = doubles(vtrn2q_f32(v[2], v[3]));
    v[0] = vreinterpretq_f32_f64(vtrn1q_f64(even01, even23));
    v[1] = vreinterpretq_f32_f64(vtrn1q_f64(odd01, odd23));
    v[2] = vreinterpretq_f32_f64(vtrn2q_f64(even01, even23));
    v[3] = vreinterpretq_f32_f64(vtrn2q_f64(odd01, odd23));
  }
};

}  // namespace
}  // namespace ridge
