// Multiply-adds with pairs of 16-byte registers.
#include "op/rate/kernels.h"
#include "op/simd/neon.h"

namespace ridge {

int64_t rate_f32_neon(int64_t n) {
  Simd::F one = Simd::set1(1), sums[kRateSums];
  for (Simd::F& sum : sums) sum = Simd::zero();
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kRateSums; ++j) sums[j] = Simd::fma(one, one, sums[j]);
    RIDGE_KEEP(one);
  }
  double total = 0;
  float lanes[Simd::kLanes];
  for (const Simd::F& sum : sums) {
    Simd::store(lanes, sum);
    for (const float lane : lanes) total += double(lane);
  }
  return int64_t(total);
}

int64_t rate_int8_neon(int64_t n) {
  Simd::I ones = Simd::iset1(0x01010101), sums[kRateSums];
  for (Simd::I& sum : sums) sum = Simd::izero();
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kRateSums; ++j) sums[j] = Simd::dot4_small(sums[j], ones, ones);
    RIDGE_KEEP(ones);
  }
  int64_t total = 0;
  int32_t lanes[Simd::kLanes];
  for (const Simd::I& sum : sums) {
    Simd::istore(lanes, sum);
    for (const int32_t lane : lanes) total += lane;
  }
  return total;
}

}  // namespace ridge
