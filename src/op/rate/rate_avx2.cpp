// Multiply-adds with 32-byte registers.
#include <immintrin.h>

#include "op/rate/kernels.h"

namespace ridge {

int64_t rate_f32_avx2(int64_t n) {
  __m256 one = _mm256_set1_ps(1), sums[kRateSums];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kRateSums; ++j) sums[j] = _mm256_fmadd_ps(one, one, sums[j]);
    __asm__ volatile("" : "+x"(one));
  }
  double total = 0;
  float lanes[8];
  for (const __m256& sum : sums) {
    _mm256_storeu_ps(lanes, sum);
    for (const float lane : lanes) total += double(lane);
  }
  return int64_t(total);
}

int64_t rate_int8_avx2(int64_t n) {
  __m256i one = _mm256_set1_epi8(1), pairs = _mm256_set1_epi16(1), sums[kRateSums];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kRateSums; ++j) {
      sums[j] = _mm256_add_epi32(sums[j], _mm256_madd_epi16(_mm256_maddubs_epi16(one, one), pairs));
      __asm__ volatile("" : "+x"(one));  // so that the products are made again
    }
  }
  int64_t total = 0;
  int32_t lanes[8];
  for (const __m256i& sum : sums) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), sum);
    for (const int32_t lane : lanes) total += lane;
  }
  return total;
}

}  // namespace ridge
