// exp(x) on vectors, for softmax and SiLU. Include after a Simd struct.
#pragma once

namespace ridge {
namespace {

/// exp(x) for x in [-87, 88], clamped outside; relative error below 1.5e-7 (tested over the range).
/// Cody-Waite reduction x = n ln2 + r, then 1 + r + r^2 g(r): g of degree 4 has the least largest relative error of
/// exp(r) on |r| <= 0.347, 4e-9, so float rounding is all that is left.
inline Simd::F vector_exp(Simd::F x) {
  x = Simd::min(Simd::max(x, Simd::set1(-87.0f)), Simd::set1(88.0f));
  const Simd::F n = Simd::round(Simd::mul(x, Simd::set1(1.44269504f)));
  Simd::F r = Simd::fma(n, Simd::set1(-0.693359375f), x);
  r = Simd::fma(n, Simd::set1(2.12194440e-4f), r);
  Simd::F p = Simd::set1(1.38144288e-3f);
  for (const float c : {8.36879760e-3f, 4.16683964e-2f, 1.66665196e-1f, 4.99999940e-1f, 1.0f, 1.0f})
    p = Simd::fma(p, r, Simd::set1(c));
  return Simd::scale_exp2(p, n);
}

}  // namespace
}  // namespace ridge
