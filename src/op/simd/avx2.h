// The vector operations of op/simd/avx512.h for AVX2 + FMA + F16C. Include only from *_avx2.cpp files.
#pragma once

#include "op/simd/bytes_avx2.h"

namespace ridge {
namespace {

struct Simd {
  static constexpr int kLanes = 8;
  static constexpr int kGemmRows = 4;  // tokens per register tile: 4 x 3 accumulators of 16 registers
  using F = __m256;
  using I = __m256i;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F load_f16(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  /// The 256th of e4m3 codes (format/e4m3.h): a sign-extended byte has its sign at bits 15 and 14 once it is moved up.
  static F load_e4m3(const void* p) {
    const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(codes, 7), _mm_set1_epi16(int16_t(0xBFFF))));
  }
  static F load_bf16(const void* p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))), 16));
  }
  static F load_i8(const void* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
  }
  static F load_u8(const void* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
  }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// a * 2^n for integral n in [-126, 127]
  static F scale_exp2(F a, F n) {
    return _mm256_mul_ps(
        a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)));
  }
  static F select_ge(F a, F b, F value) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ), value); }
  /// How many lanes have a >= b.
  static int count_ge(F a, F b) {
    return __builtin_popcount(unsigned(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ))));
  }
  static float sum(F a) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
  }
  static float top(F a) {
    const __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 quarter = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
  }
  static F sum_each(const F a[8]) {
    const F left = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    const F right = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(left, right, 0x20), _mm256_permute2f128_ps(left, right, 0x31));
  }
  static constexpr int slot(int lane) { return lane; }
  static constexpr int sum_order(int place) { return place; }
  /// Lane j of vector i becomes lane i of vector j.
  static void transpose(F v[8]) {
    F a[8];
    for (int i = 0; i < 8; i += 4) {
      const F x = _mm256_unpacklo_ps(v[i], v[i + 1]), y = _mm256_unpackhi_ps(v[i], v[i + 1]);
      const F z = _mm256_unpacklo_ps(v[i + 2], v[i + 3]), w = _mm256_unpackhi_ps(v[i + 2], v[i + 3]);
      a[i] = _mm256_shuffle_ps(x, z, 0x44), a[i + 1] = _mm256_shuffle_ps(x, z, 0xEE);
      a[i + 2] = _mm256_shuffle_ps(y, w, 0x44), a[i + 3] = _mm256_shuffle_ps(y, w, 0xEE);
    }
    for (int c = 0; c < 4; ++c) {
      v[c] = _mm256_permute2f128_ps(a[c], a[4 + c], 0x20);
      v[4 + c] = _mm256_permute2f128_ps(a[c], a[4 + c], 0x31);
    }
  }
  static void store_i8(int8_t* p, F a) {
    const __m256i wide = _mm256_cvtps_epi32(a);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(half, half));
  }

  static F power_of_two(const void* p) {
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    const __m256i half = _mm256_srli_epi32(e, 1), bias = _mm256_set1_epi32(63);
    const __m256i rest = _mm256_sub_epi32(e, half);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)),
                         _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
  }
  static I izero() { return _mm256_setzero_si256(); }
  static I iset1(int32_t x) { return _mm256_set1_epi32(x); }
  static I iload(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static constexpr int kDot4Zero = 0;
  /// As on AVX-512.
  static I dot4(I acc, I weights, I activations) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(acc, weights, activations);
#elif defined(__AVX512VNNI__)  // the same instruction as tests of AVX-512 machines can run it
    return _mm256_dpbusd_epi32(acc, weights, activations);
#else                          // maddubs would saturate past 2 x 255 x 127, so even and odd bytes are multiplied apart
    const I even_w = _mm256_and_si256(weights, _mm256_set1_epi16(0xFF));
    const I odd_w = _mm256_srli_epi16(weights, 8);
    const I even_a = _mm256_srai_epi16(_mm256_slli_epi16(activations, 8), 8);
    const I odd_a = _mm256_srai_epi16(activations, 8);
    return _mm256_add_epi32(acc, _mm256_add_epi32(_mm256_madd_epi16(even_w, even_a), _mm256_madd_epi16(odd_w, odd_a)));
#endif
  }
  static I dot4_small(I acc, I weights, I activations) {  // 2 x 127 x 128 fits 16 bits
#if defined(__AVXVNNI__) || defined(__AVX512VNNI__)
    return dot4(acc, weights, activations);
#endif
    const I pairs = _mm256_maddubs_epi16(weights, activations);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static I iadd(I a, I b) { return _mm256_add_epi32(a, b); }
  static I ior(I a, I b) { return _mm256_or_si256(a, b); }
  static I shift_left(I a, int bits) { return _mm256_slli_epi32(a, bits); }
  static void istore(void* p, I a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
  template <int kBits>
  static I moved(I a) {
    if constexpr (kBits > 0) return _mm256_slli_epi16(a, kBits);
    if constexpr (kBits < 0) return _mm256_srli_epi16(a, -kBits);
    return a;
  }
  template <int kMask>
  static I masked(I a) {
    return _mm256_and_si256(a, _mm256_set1_epi8(char(kMask)));
  }
  template <int kMask>
  static I joined(I a, I b) {
    return ior(masked<kMask>(a), masked<0xFF ^ kMask>(b));
  }
  static I lookup(const uint8_t* table, I a) {
    const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), masked<15>(a));
  }
  static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
  static constexpr int kPanelVectors = 2;
};

}  // namespace
}  // namespace ridge
