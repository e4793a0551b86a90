// How kernels read units of panels (op/gemv/panels.h): codes of 4 columns, and scales and minima of 32 or 16 columns as
// floats. Included once per ISA after its Simd struct.
//
// A head is made once for a unit. `v` is the vector of rows, 0 where a vector holds all 16; `at` counts columns of one
// scale in the unit. Products of fp16 and integer scales are exact in float, as in the formats' decoders.
#pragma once

#include "op/gemv/panels.h"

namespace ridge {
namespace {

constexpr int kRowVectors = Simd::kPanelVectors, kVectorBytes = 64 / kRowVectors, kF16Row = 2 * kPanelRows;

inline Simd::F f16_of_rows(const std::byte* at, int v) { return Simd::load_f16(at + v * 2 * Simd::kLanes); }

/// n values of six bits from 3 n / 4 bytes (put_six in panels.cpp).
template <int n>
inline void take_six(const std::byte* from, uint8_t* out) {
  constexpr int kPart = n / 4;
  const auto* const p = reinterpret_cast<const uint8_t*>(from);
  for (int i = 0; i < 3 * kPart; ++i) out[i] = p[i] & 63;
  for (int i = 0; i < kPart; ++i)
    out[3 * kPart + i] = uint8_t(p[i] >> 6 | p[kPart + i] >> 6 << 2 | p[2 * kPart + i] >> 6 << 4);
}

/// Scales that a vector instruction reads from the unit, and fp16 minima.
template <class F>
struct PanelHead {
  const std::byte* unit;
  explicit PanelHead(const std::byte* at) : unit(at) {}
  Simd::F scale(int v, int at) const {
    if constexpr (PanelUnit<F>::kScales == PanelScales::power) return Simd::power_of_two(unit + v * Simd::kLanes);
    const Simd::F d = f16_of_rows(unit + (PanelUnit<F>::kScales == PanelScales::halves ? kF16Row * at : 0), v);
    if constexpr (PanelUnit<F>::kScales == PanelScales::bytes)
      return Simd::mul(d, Simd::load_i8(unit + kF16Row + kPanelRows * at + v * Simd::kLanes));
    return d;
  }
  Simd::F min(int v, int) const { return f16_of_rows(unit + kF16Row, v); }
};

/// Integers of less than a byte, unpacked for the whole unit: [at][row].
template <class F>
requires(PanelUnit<F>::kScales >= PanelScales::six_bits) struct PanelHead<F> {
  using Unit = PanelUnit<F>;
  static constexpr int n = kPanelRows * F::kGroup / Unit::kScaled;
  static constexpr bool kHasMin = Unit::kMinima != PanelMinima::none;
  static constexpr bool kEighths = Unit::kMinima == PanelMinima::eighths;
  Simd::F d[kRowVectors], dmin[kRowVectors];        // what the integers count
  alignas(64) uint8_t scales[kHasMin ? 2 * n : n];  // minima behind them

  explicit PanelHead(const std::byte* at) {
    constexpr float kPart = Unit::kScales == PanelScales::odd_quarters  ? 0.25f
                            : Unit::kScales == PanelScales::odd_eighths ? 0.125f
                                                                        : 1.0f;
    for (int v = 0; v < kRowVectors; ++v) {
      d[v] = Simd::mul(f16_of_rows(at, v), Simd::set1(kPart));
      if constexpr (kEighths) dmin[v] = Simd::mul(f16_of_rows(at, v), Simd::set1(0.125f));
      else if constexpr (kHasMin) dmin[v] = Simd::sub(Simd::zero(), f16_of_rows(at + kF16Row, v));
    }
    const std::byte* const packed = at + (kHasMin && !kEighths ? 2 : 1) * kF16Row;
    const auto* const bytes = reinterpret_cast<const uint8_t*>(packed);
    if constexpr (Unit::kScales == PanelScales::six_bits) take_six<sizeof scales>(packed, scales);
    else if constexpr (Unit::kScales == PanelScales::nibbles)
      for (int i = 0; i < n; ++i) scales[i] = bytes[i] & 15, scales[n + i] = bytes[i] >> 4;
    else
      for (int i = 0; i < n / 2; ++i) put_odd(i, bytes[i] & 15), put_odd(n / 2 + i, bytes[i] >> 4);
  }
  Simd::F scale(int v, int at) const {
    Simd::F integers = Simd::load_u8(scales + kPanelRows * at + v * Simd::kLanes);
    if constexpr (Unit::kScales == PanelScales::six_bits && !kHasMin) integers = Simd::sub(integers, Simd::set1(32));
    return Simd::mul(d[v], integers);
  }
  Simd::F min(int v, int at) const {
    const uint8_t* const minima = scales + n + kPanelRows * at + v * Simd::kLanes;
    return Simd::mul(dmin[v], kEighths ? Simd::load_i8(minima) : Simd::load_u8(minima));
  }

 private:
  /// With minima bit 3 says that an eighth of the scale is taken off, not put on.
  void put_odd(int i, int nibble) {
    scales[i] = uint8_t(2 * (kEighths ? nibble & 7 : nibble) + 1);
    if constexpr (kEighths) scales[n + i] = uint8_t(nibble & 8 ? -scales[i] : scales[i]);
  }
};

/// Weights of columns 4 k .. 4 k + 3 of 32 as unsigned bytes, kZero for 0. `codes` are the group's, vector v of rows.
template <class F, int k>
inline Simd::I panel_weights(const std::byte* codes) {
  using Unit = PanelUnit<F>;
  constexpr int kLow = Unit::kLow, kHigh = Unit::kHigh;
  constexpr int kVector = kLow == 2 ? k / 4 : k % kLow, kPlace = kLow == 2 ? k % 4 : k / kLow;
  const Simd::I low = Simd::template moved<-kLow * kPlace>(Simd::iload(codes + 64 * kVector));
  constexpr int kLowMask = (1 << kLow) - 1;
  if constexpr (kHigh > 0) {
    constexpr int kEach = 8 / kHigh;  // in a byte of the vectors behind the low bits
    const Simd::I high = Simd::template moved<kLow - k % kEach * kHigh>(Simd::iload(codes + 64 * (kLow + k / kEach)));
    if constexpr (Unit::kHasLevels) return Simd::lookup(Unit::kLevels, Simd::template joined<kLowMask>(low, high));
    else
      return Simd::ior(Simd::template masked<kLowMask>(low), Simd::template masked<((1 << kHigh) - 1) << kLow>(high));
  }
  if constexpr (Unit::kHasLevels) return Simd::lookup(Unit::kLevels, low);
  return Simd::template masked<kLowMask>(low);  // all bits of 8
}
/// Whether weights reach past 127: the dot product must not add pairs in 16 bits.
template <class F>
constexpr bool kLargeWeights = PanelUnit<F>::kZero == 128;
/// Number that stands for a weight of 0 in a dot product.
template <class F>
constexpr int kDotZero = PanelUnit<F>::kZero - (kLargeWeights<F> ? Simd::kDot4Zero : 0);

}  // namespace
}  // namespace ridge
