// The handful of vector operations kernels are written in, for AVX-512. Kernel templates are compiled with this struct
// or its twin of AVX2 or NEON; include only from *_avx512.cpp files, whose flags the rest of the program must not get.
#pragma once

#include "op/simd/bytes_avx2.h"

namespace ridge {
namespace {

struct Simd {
  static constexpr int kLanes = 16;
  static constexpr int kGemmRows = 8;  // tokens per register tile: 8 x 3 accumulators of 32 registers
  using F = __m512;
  using I = __m512i;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const void* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F load_f16(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
  /// The 256th of e4m3 codes (format/e4m3.h): a sign-extended byte has its sign at bits 15 and 14 once it is moved up.
  static F load_e4m3(const void* p) {
    const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(int16_t(0xBFFF))));
  }
  static F load_bf16(const void* p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16));
  }
  static F load_i8(const void* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
  }
  static F load_u8(const void* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  /// a * b + c
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// a * 2^n for integral n
  static F scale_exp2(F a, F n) { return _mm512_scalef_ps(a, n); }
  /// value where a >= b, else 0
  static F select_ge(F a, F b, F value) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), value); }
  /// How many lanes have a >= b.
  static int count_ge(F a, F b) { return __builtin_popcount(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ)); }
  static float sum(F a) { return _mm512_reduce_add_ps(a); }
  static float top(F a) { return _mm512_reduce_max_ps(a); }
  /// Lane i of the result is the sum of all lanes of slot(i)'s vector; kernels fill slots in that order.
  static F sum_each(const F a[16]) {
    F half[8], quarter[4];
    for (int i = 0; i < 8; ++i)
      half[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[i], a[i + 8]), _mm512_unpackhi_ps(a[i], a[i + 8]));
    for (int i = 0; i < 4; ++i) {
      const __m512d low = _mm512_castps_pd(half[i]), high = _mm512_castps_pd(half[i + 4]);
      quarter[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                                 _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
    }
    const F left = _mm512_add_ps(_mm512_shuffle_f32x4(quarter[0], quarter[1], 0x44),
                                 _mm512_shuffle_f32x4(quarter[0], quarter[1], 0xEE));
    const F right = _mm512_add_ps(_mm512_shuffle_f32x4(quarter[2], quarter[3], 0x44),
                                  _mm512_shuffle_f32x4(quarter[2], quarter[3], 0xEE));
    return _mm512_add_ps(_mm512_shuffle_f32x4(left, right, 0x88), _mm512_shuffle_f32x4(left, right, 0xDD));
  }
  /// Where to put the vector whose sum shall be lane `lane` of sum_each.
  static constexpr int slot(int lane) {
    constexpr int kOffset[4] = {0, 8, 4, 12};
    return lane / 4 + kOffset[lane % 4];
  }
  /// sum_each adds lanes two by two, then the pairs two by two, ...: the lane at each place of that tree.
  static constexpr int sum_order(int place) {
    return (place & 1) << 1 | (place >> 1 & 1) | (place >> 2 & 1) << 3 | (place >> 3) << 2;
  }
  /// Lane j of vector i becomes lane i of vector j.
  static void transpose(F v[16]) {
    F a[16];
    for (int i = 0; i < 16; i += 4) {
      const F x = _mm512_unpacklo_ps(v[i], v[i + 1]), y = _mm512_unpackhi_ps(v[i], v[i + 1]);
      const F z = _mm512_unpacklo_ps(v[i + 2], v[i + 3]), w = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
      a[i] = pairs<0>(x, z), a[i + 1] = pairs<1>(x, z), a[i + 2] = pairs<0>(y, w), a[i + 3] = pairs<1>(y, w);
    }
    // a[4 r + c] has, in 128-bit part l, lane 4 l + c of vectors 4 r .. 4 r + 3.
    for (int c = 0; c < 4; ++c) {
      const F x = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x44), y = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x44);
      const F z = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xEE), w = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xEE);
      v[c] = _mm512_shuffle_f32x4(x, y, 0x88), v[4 + c] = _mm512_shuffle_f32x4(x, y, 0xDD);
      v[8 + c] = _mm512_shuffle_f32x4(z, w, 0x88), v[12 + c] = _mm512_shuffle_f32x4(z, w, 0xDD);
    }
  }
  /// Sixteen floats, already rounded and in range, to sixteen int8.
  static void store_i8(int8_t* p, F a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
  }

  /// The low (0) or high (1) 64 bits of each 128 of a, then of b.
  template <int kHigh>
  static F pairs(F a, F b) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_castpd_ps(kHigh ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
  }

  /// 2^(byte - 128) of sixteen bytes, exact.
  static F power_of_two(const void* p) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    const __m512i normal = _mm512_sub_epi32(_mm512_slli_epi32(e, 23), _mm512_set1_epi32(1 << 23));
    const __m512i denormal =
        _mm512_add_epi32(_mm512_slli_epi32(e, 21), _mm512_set1_epi32(1 << 21));  // of bytes 0 and 1
    return _mm512_castsi512_ps(_mm512_max_epi32(normal, denormal));
  }
  // Integer dot products on a panel of 16 rows: one I holds 16 int32 sums or 16 x 4 bytes.
  static I izero() { return _mm512_setzero_si512(); }
  static I iset1(int32_t x) { return _mm512_set1_epi32(x); }
  static I iload(const void* p) { return _mm512_loadu_si512(p); }
  static constexpr int kDot4Zero = 0;  ///< what dot4() takes off each weight
  /// acc[r] += sum of 4: unsigned weight bytes, less kDot4Zero, times signed activation bytes (weights <= 255)
  static I dot4(I acc, I weights, I activations) { return _mm512_dpbusd_epi32(acc, weights, activations); }
  /// dot4() with the same four activations in every lane, read from memory: an instruction less than broadcasting them.
  static I dot4_at(I acc, I weights, const int8_t* activations) {
    struct [[gnu::may_alias]] Four {
      int8_t bytes[4];
    };
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(weights), "m"(*reinterpret_cast<const Four*>(activations)));
    return acc;
  }
  /// dot4() for weights up to 127, of which nothing is taken off.
  static I dot4_small(I acc, I weights, I activations) { return _mm512_dpbusd_epi32(acc, weights, activations); }
  static I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
  static I ior(I a, I b) { return _mm512_or_si512(a, b); }
  static I shift_left(I a, int bits) { return _mm512_slli_epi32(a, unsigned(bits)); }
  static void istore(void* p, I a) { _mm512_storeu_si512(p, a); }
  /// Bits of every byte moved up by kBits, down where it is below 0; bits of other bytes may come in.
  template <int kBits>
  static I moved(I a) {
    if constexpr (kBits > 0) return _mm512_slli_epi16(a, kBits);
    if constexpr (kBits < 0) return _mm512_srli_epi16(a, -kBits);
    return a;
  }
  template <int kMask>
  static I masked(I a) {
    return _mm512_and_si512(a, _mm512_set1_epi8(char(kMask)));
  }
  /// Bits of kMask from a, the others from b.
  template <int kMask>
  static I joined(I a, I b) {
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8(char(kMask)), 0xE4);
  }
  /// table[byte % 16]
  static I lookup(const uint8_t* table, I a) {
    const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_permutexvar_epi8(a, _mm512_broadcast_i32x4(t));  // byte % 64 of four tables
  }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static constexpr int kPanelVectors = 1;  // vectors per 16 rows
};

}  // namespace
}  // namespace ridge
