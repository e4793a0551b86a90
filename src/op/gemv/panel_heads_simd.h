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

/// fp16 scales of 32 columns, or of the whole unit; fp16 minima behind them where the format has some.
template <class F>
struct PanelHead {
  const std::byte* unit;
  explicit PanelHead(const std::byte* at) : unit(at) {}
  Simd::F scale(int v, int) const { return f16_of_rows(unit, v); }
  Simd::F min(int v, int) const { return f16_of_rows(unit + kF16Row, v); }
};

template <>
struct PanelHead<MXFP4> {
  const std::byte* unit;
  explicit PanelHead(const std::byte* at) : unit(at) {}
  Simd::F scale(int v, int) const { return Simd::power_of_two(unit + v * Simd::kLanes); }
};

/// 16 d, 16 dmin; 6-bit scales [8][row], then minima [8][row].
struct PanelHead45K {
  const std::byte* unit;
  alignas(64) uint8_t six[256];
  explicit PanelHead45K(const std::byte* at) : unit(at) { take_six<256>(at + 2 * kF16Row, six); }
  Simd::F scale(int v, int at) const { return Simd::mul(f16_of_rows(unit, v), integers(v, at)); }
  Simd::F min(int v, int at) const {
    return Simd::mul(Simd::sub(Simd::zero(), f16_of_rows(unit + kF16Row, v)), integers(v, 8 + at));
  }
  Simd::F integers(int v, int at) const { return Simd::load_u8(six + kPanelRows * at + v * Simd::kLanes); }
};
template <>
struct PanelHead<Q4_K> : PanelHead45K {
  using PanelHead45K::PanelHead45K;
};
template <>
struct PanelHead<Q5_K> : PanelHead45K {
  using PanelHead45K::PanelHead45K;
};

/// 16 d; 8-bit scales [16][row].
template <>
struct PanelHead<Q6_K> {
  const std::byte* unit;
  explicit PanelHead(const std::byte* at) : unit(at) {}
  Simd::F scale(int v, int at) const {
    return Simd::mul(f16_of_rows(unit, v), Simd::load_i8(unit + kF16Row + kPanelRows * at + v * Simd::kLanes));
  }
};

/// 16 d; 6-bit scales [n][row], 32 for 0.
template <int n>
struct PanelHeadSix {
  const std::byte* unit;
  alignas(64) uint8_t six[n * kPanelRows];
  explicit PanelHeadSix(const std::byte* at) : unit(at) { take_six<n * kPanelRows>(at + kF16Row, six); }
  Simd::F scale(int v, int at) const {
    const Simd::F code = Simd::load_u8(six + kPanelRows * at + v * Simd::kLanes);
    return Simd::mul(f16_of_rows(unit, v), Simd::sub(code, Simd::set1(32)));
  }
};
template <>
struct PanelHead<Q3_K> : PanelHeadSix<16> {
  using PanelHeadSix::PanelHeadSix;
};
template <>
struct PanelHead<IQ4_XS> : PanelHeadSix<8> {
  using PanelHeadSix::PanelHeadSix;
};

/// 16 d, 16 dmin; a scale and a minimum in a byte [16][row].
template <>
struct PanelHead<Q2_K> {
  const std::byte* unit;
  alignas(64) uint8_t scales[256], minima[256];
  explicit PanelHead(const std::byte* at) : unit(at) {
    const auto* const both = reinterpret_cast<const uint8_t*>(at + 2 * kF16Row);
    for (int i = 0; i < 256; ++i) scales[i] = both[i] & 0xF, minima[i] = both[i] >> 4;
  }
  Simd::F scale(int v, int at) const {
    return Simd::mul(f16_of_rows(unit, v), Simd::load_u8(scales + kPanelRows * at + v * Simd::kLanes));
  }
  Simd::F min(int v, int at) const {
    return Simd::mul(Simd::sub(Simd::zero(), f16_of_rows(unit + kF16Row, v)),
                     Simd::load_u8(minima + kPanelRows * at + v * Simd::kLanes));
  }
};

/// 16 d; odd integers in bytes [n][row], in parts of 1 / kOf.
template <int kOf>
struct PanelHeadOdd {
  const std::byte* unit;
  explicit PanelHeadOdd(const std::byte* at) : unit(at) {}
  Simd::F scale(int v, int at) const {
    const Simd::F integers = Simd::load_u8(unit + kF16Row + kPanelRows * at + v * Simd::kLanes);
    return Simd::mul(f16_of_rows(unit, v), Simd::mul(integers, Simd::set1(1.0f / kOf)));
  }
};
template <>
struct PanelHead<IQ2_XXS> : PanelHeadOdd<8> {
  using PanelHeadOdd::PanelHeadOdd;
};
template <>
struct PanelHead<IQ2_XS> : PanelHeadOdd<8> {
  using PanelHeadOdd::PanelHeadOdd;
};
template <>
struct PanelHead<IQ2_S> : PanelHeadOdd<8> {
  using PanelHeadOdd::PanelHeadOdd;
};
template <>
struct PanelHead<IQ3_XXS> : PanelHeadOdd<4> {
  using PanelHeadOdd::PanelHeadOdd;
};
template <>
struct PanelHead<IQ3_S> : PanelHeadOdd<1> {
  using PanelHeadOdd::PanelHeadOdd;
};
template <>
struct PanelHead<IQ1_M> : PanelHeadOdd<8> {
  using PanelHeadOdd::PanelHeadOdd;
};

/// 16 d; bytes [8][row]: an odd integer below 16, plus 16 where an eighth of the scale is taken off, not put on.
template <>
struct PanelHead<IQ1_S> {
  const std::byte* unit;
  alignas(64) uint8_t scales[8 * kPanelRows];
  alignas(64) int8_t minima[8 * kPanelRows];
  explicit PanelHead(const std::byte* at) : unit(at) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(at + kF16Row);
    for (int i = 0; i < 8 * kPanelRows; ++i) {
      scales[i] = bytes[i] & 15;
      minima[i] = int8_t(bytes[i] & 16 ? -scales[i] : scales[i]);
    }
  }
  Simd::F scale(int v, int at) const {
    return Simd::mul(f16_of_rows(unit, v), Simd::load_u8(scales + kPanelRows * at + v * Simd::kLanes));
  }
  Simd::F min(int v, int at) const {
    const Simd::F eighths = Simd::load_i8(minima + kPanelRows * at + v * Simd::kLanes);
    return Simd::mul(f16_of_rows(unit, v), Simd::mul(eighths, Simd::set1(0.125f)));
  }
};

/// Levels of a format whose codes are no integers in steps of one, plus kZero; null for all others.
template <class F>
inline const uint8_t* panel_levels() {
  return nullptr;
}
template <>
inline const uint8_t* panel_levels<IQ4_NL>() {
  alignas(16) static constexpr uint8_t kLevels[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                      129, 141, 153, 166, 181, 197, 217, 241};
  return kLevels;
}
template <>
inline const uint8_t* panel_levels<IQ4_XS>() {
  return panel_levels<IQ4_NL>();
}
template <>
inline const uint8_t* panel_levels<MXFP4>() {
  alignas(16) static constexpr uint8_t kLevels[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  return kLevels;
}

/// Levels of points of iq2 grids, then the same with the other sign.
template <>
inline const uint8_t* panel_levels<IQ2_XXS>() {
  alignas(16) static constexpr uint8_t kLevels[16] = {43 + 8, 43 + 25, 43 + 43, 43, 43 - 8, 43 - 25, 43 - 43, 43};
  return kLevels;
}
template <>
inline const uint8_t* panel_levels<IQ2_XS>() {
  return panel_levels<IQ2_XXS>();
}
template <>
inline const uint8_t* panel_levels<IQ2_S>() {
  return panel_levels<IQ2_XXS>();
}
template <>
inline const uint8_t* panel_levels<IQ3_XXS>() {
  alignas(16) static constexpr uint8_t kLevels[16] = {66, 74, 82, 90, 98, 106, 114, 124, 58, 50, 42, 34, 26, 18, 10, 0};
  return kLevels;
}
template <>
inline const uint8_t* panel_levels<IQ3_S>() {
  alignas(16) static constexpr uint8_t kLevels[16] = {16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0};
  return kLevels;
}
/// Eighths: -1, 0 and 1 with an eighth put on, then with an eighth taken off.
template <>
inline const uint8_t* panel_levels<IQ1_M>() {
  alignas(16) static constexpr uint8_t kLevels[16] = {9 - 7, 9 + 1, 9 + 9, 9, 9 - 9, 9 - 1, 9 + 7, 9};
  return kLevels;
}

/// Weights of columns 4 k .. 4 k + 3 of 32 as unsigned bytes, kZero for 0. `codes` are the group's, vector v of rows.
template <class F, int k>
inline Simd::I panel_weights(const std::byte* codes) {
  using Unit = PanelUnit<F>;
  constexpr int kLow = Unit::kLow, kBehind = 64 * kLow;
  Simd::I low;
  if constexpr (kLow == 8) return Simd::iload(codes + 64 * k);
  if constexpr (kLow == 4) low = Simd::template field<k / 4 * 4, 0, 4>(Simd::iload(codes + 64 * (k % 4)));
  if constexpr (kLow == 2) low = Simd::template field<k % 4 * 2, 0, 2>(Simd::iload(codes + 64 * (k / 4)));
  if constexpr (Unit::kHigh == 1) low = Simd::ior(low, Simd::template field<k, kLow, 1>(Simd::iload(codes + kBehind)));
  if constexpr (Unit::kHigh == 2)
    low = Simd::ior(low, Simd::template field<k % 4 * 2, kLow, 2>(Simd::iload(codes + kBehind + 64 * (k / 4))));
  if (const uint8_t* const levels = panel_levels<F>()) low = Simd::lookup(levels, low);
  return low;
}
/// Whether weights reach past 127: the dot product must not add pairs in 16 bits.
template <class F>
constexpr bool kLargeWeights = PanelUnit<F>::kZero == 128;
/// What a weight of 0 is in a dot product.
template <class F>
constexpr int kDotZero = PanelUnit<F>::kZero - (kLargeWeights<F> ? Simd::kDot4Zero : 0);

}  // namespace
}  // namespace ridge
