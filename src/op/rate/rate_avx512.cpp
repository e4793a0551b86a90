// Multiply-adds with 64-byte registers.
#include <immintrin.h>

#include "op/rate/kernels.h"

namespace ridge {
namespace {

inline int64_t total_of(const __m512 (&sums)[kRateSums]) {
  double total = 0;
  float lanes[16];
  for (const __m512& sum : sums) {
    _mm512_storeu_ps(lanes, sum);
    for (const float lane : lanes) total += double(lane);
  }
  return int64_t(total);
}

}  // namespace

int64_t rate_f32_avx512(int64_t n) {
  __m512 one = _mm512_set1_ps(1), sums[kRateSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kRateSums; ++j) sums[j] = _mm512_fmadd_ps(one, one, sums[j]);
    __asm__ volatile("" : "+v"(one));
  }
  return total_of(sums);
}

int64_t rate_int8_avx512(int64_t n) {
  __m512i one = _mm512_set1_epi8(1), sums[kRateSums];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kRateSums; ++j) sums[j] = _mm512_dpbusd_epi32(sums[j], one, one);
    __asm__ volatile("" : "+v"(one));
  }
  int64_t total = 0;
  int32_t lanes[16];
  for (const __m512i& sum : sums) {
    _mm512_storeu_si512(lanes, sum);
    for (const int32_t lane : lanes) total += lane;
  }
  return total;
}

__attribute__((target("avx512bf16"))) int64_t rate_bf16_avx512(int64_t n) {
  __m512i bits = _mm512_set1_epi16(0x3F80);  // 1
  __m512 sums[kRateSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; ++i) {
    const __m512bh one = reinterpret_cast<const __m512bh&>(bits);
#pragma GCC unroll 12
    for (int j = 0; j < kRateSums; ++j) sums[j] = _mm512_dpbf16_ps(sums[j], one, one);
    __asm__ volatile("" : "+v"(bits));
  }
  return total_of(sums);
}

// F16 counts exactly to 2048 only: sums are moved to integers in time, once in 1024 rounds. Written as assembly,
// because clang 14 has no intrinsics of AVX512-FP16.
__attribute__((target("avx512fp16"))) int64_t rate_f16_avx512(int64_t n) {
  constexpr int64_t kTurn = 1024;
  const __m512i one = _mm512_set1_epi16(0x3C00);
  int64_t total = 0;
  uint16_t f16[32];
  for (int64_t first = 0; first < n; first += kTurn) {
    __m512i sums[kRateSums];
    for (__m512i& sum : sums) sum = _mm512_setzero_si512();
    const int64_t rounds = n - first < kTurn ? n - first : kTurn;
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
      for (int j = 0; j < kRateSums; ++j) __asm__ volatile("vfmadd231ph %1, %1, %0" : "+v"(sums[j]) : "v"(one));
    }
    for (const __m512i& sum : sums) {
      _mm512_storeu_si512(f16, sum);
      for (const uint16_t half : f16) total += int64_t(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half))));
    }
  }
  return total;
}

}  // namespace ridge
