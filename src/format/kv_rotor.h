// Shared code of the rotor formats: the Lloyd-Max levels of a standard normal, codes packed 8 to kBits bytes, and the
// coding of a row under its own fp16 scale.
//
// The row x of D values arrives rotated and centred, so that its values are close to normal with deviation |x| /
// sqrt(D). u = x sqrt(D) / |x| is coded against the levels l. Rounding nearest takes the nearest level (cells meet at
// midpoints, a value on one goes up); rounding weighted starts there and lets the errors of the row cancel under a
// metric M (format/weighted_rounding.h), which only the encoder knows. A decoded value is its level times the scale of
// the row:
//
//   unbiased  scale = <x, x> / <x, l>: <x, decoded> = <x, x>, so sums over many rows keep their size
//   norm      scale = |x| / |l|: the decoded row keeps its norm
//   lsq       scale = <x, l> / <l, l>: least squared error for these codes
//
// With a metric, <a, b> is a M b. Code k stands at bits kBits k .. kBits k + kBits - 1 of the row read as a
// little-endian number: 8 codes in 3 bytes, or two in one. No value has an error bound of its own: what lies beyond the
// outermost level is clipped to it. The mean squared error of normal values is 0.03455 (8 levels) and 0.009501 (16
// levels) of their variance under nearest rounding. Values and scales beyond +-65504 become that, NaN becomes 0; both
// are counted.
#pragma once

#include "format/kv_f16.h"

namespace ridge {

/// How a cache treats rotor rows: measured in docs/results.md, reasons in docs/decisions/0004.
inline constexpr KvPolicy kRotorPolicy{.rotation = Rotation::hadamard,
                                       .centre = true,
                                       .window = 96,
                                       .sinks = 4,
                                       .rounding = KvRounding::weighted,
                                       .recent = "i8r"};

/// Levels in rising order. A plain struct: functions copy it to a local constant, which device code can index.
template <int kBits>
struct LevelTable {
  static constexpr int kCount = 1 << kBits;
  float at[kCount];
  constexpr float operator[](size_t code) const { return at[code]; }
};

/// The quantiser of a standard normal with least squared error: each level is the mean of its cell, cells meet at the
/// midpoints.
template <int kBits>
struct LloydMax;
/// As published with PlanarQuant-3, within 3e-5 of the optimum; squared error 0.03455.
template <>
struct LloydMax<3> {
  static constexpr LevelTable<3> kLevels = {
      {-2.1519143f, -1.3439092f, -0.7560054f, -0.2451275f, 0.2451275f, 0.7560054f, 1.3439092f, 2.1519143f}};
};
/// Squared error 0.009501.
template <>
struct LloydMax<4> {
  static constexpr LevelTable<4> kLevels = {{-2.732589571f, -2.069017227f, -1.618046386f, -1.256231197f, -0.942340456f,
                                             -0.656759119f, -0.388048299f, -0.128395030f, 0.128395030f, 0.388048299f,
                                             0.656759119f, 0.942340456f, 1.256231197f, 1.618046386f, 2.069017227f,
                                             2.732589571f}};
};

/// Codes of a row. Code k stands at bits kBits * k of the row read as a little-endian number.
template <int kBits>
struct RotorCodes {
  static constexpr LevelTable<kBits> kLevels = LloydMax<kBits>::kLevels;

  /// Bytes of the codes; head_dim is a multiple of 8.
  RIDGE_HD static int64_t bytes(int head_dim) { return kBits * int64_t(head_dim) / 8; }

  /// Code of the nearest level; a value on a midpoint goes to the level above.
  RIDGE_HD static int nearest(float u) {
    constexpr LevelTable<kBits> levels = kLevels;
    int code = 0;
    for (int i = 0; i + 1 < levels.kCount; ++i) code += u >= 0.5f * (levels.at[i] + levels.at[i + 1]);
    return code;
  }

  /// Sums over a row from which its scale is computed; l are the levels of its codes. Products are in the metric, if
  /// there is one.
  struct Fit {
    double size2 = 0;    ///< <x, x>
    double dot = 0;      ///< <x, l>
    double levels2 = 0;  ///< <l, l>
    int lost = 0;        ///< values replaced, or beyond twice the outermost level: less than half is left of them

    /// Scale of the row by a rule, 0 for a row of zeros.
    RIDGE_HD float scale(KvScale rule) const {
      if (size2 <= 0) return 0;
      // A metric may leave no component along the codes; the norm always has an answer.
      if (rule == KvScale::lsq && dot > 0) return float(dot / levels2);
      if (rule == KvScale::unbiased && dot > 0) return float(size2 / dot);
      return float(std::sqrt(size2) / std::sqrt(levels2));
    }
  };
  /// Codes x * to_unit for every x of the row. NaN and infinity are replaced as saturate_f16 does.
  RIDGE_HD static Fit encode(const float* in, int head_dim, float to_unit, std::byte* codes) {
    constexpr LevelTable<kBits> levels = kLevels;
    constexpr float kClip = 2 * levels.at[levels.kCount - 1];
    Fit fit;
    for (int first = 0; first < head_dim; first += 8) {
      uint32_t word = 0;
      for (int i = 0; i < 8; ++i) {
        int replaced = 0;
        const float x = saturate_f16(in[first + i], replaced), u = x * to_unit;
        const int code = nearest(u);
        const double level = levels.at[code];
        fit.size2 += double(x) * x;
        fit.dot += level * x;
        fit.levels2 += level * level;
        fit.lost += replaced != 0 || std::abs(u) > kClip;
        word |= uint32_t(code) << (kBits * i);
      }
      std::memcpy(codes + kBits * (first / 8), &word, kBits);
    }
    return fit;
  }

  /// As encode(), the codes rounded by coding.metric.
  RIDGE_HD static Fit encode_weighted(const float* in, int head_dim, float to_unit, const KvCoding& coding,
                                      std::byte* codes) {
    constexpr LevelTable<kBits> levels = kLevels;
    constexpr float kClip = 2 * levels.at[levels.kCount - 1];
    Fit fit;
    float u[kMaxRoundingDim] = {};
    for (int i = 0; i < head_dim; ++i) {
      int replaced = 0;
      u[i] = saturate_f16(in[i], replaced) * to_unit;
      fit.lost += replaced != 0 || std::abs(u[i]) > kClip;
    }
    RoundedRow rounded;
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
    round_weighted(u, coding.metric, head_dim, levels.at, levels.kCount, rounded);
#else
    (coding.round ? coding.round : round_weighted)(u, coding.metric, head_dim, levels.at, levels.kCount, rounded);
#endif
    for (int first = 0; first < head_dim; first += 8) {
      uint32_t word = 0;
      for (int i = 0; i < 8; ++i) {
        const int at = first + i, code = rounded.codes[at];
        const double level = levels.at[code];
        fit.size2 += double(rounded.pull[at]) * u[at];
        fit.dot += level * rounded.pull[at];
        fit.levels2 += level * (double(rounded.pull[at]) - rounded.residual[at]);
        word |= uint32_t(code) << (kBits * i);
      }
      std::memcpy(codes + kBits * (first / 8), &word, kBits);
    }
    // u is x * to_unit.
    const double back = to_unit > 0 ? 1.0 / to_unit : 0.0;
    fit.size2 *= back * back;
    fit.dot *= back;
    return fit;
  }

  RIDGE_HD static void decode(const std::byte* codes, int head_dim, float scale, float* out) {
    constexpr LevelTable<kBits> levels = kLevels;
    for (int first = 0; first < head_dim; first += 8) {
      uint32_t word = 0;
      std::memcpy(&word, codes + kBits * (first / 8), kBits);
      for (int i = 0; i < 8; ++i) out[first + i] = levels.at[(word >> (kBits * i)) & (levels.kCount - 1u)] * scale;
    }
  }
};

/// A row of codes and one fp16 scale behind them, chosen by one of kScales (top of this file).
template <int kBits>
struct RotorRow {
  using Codes = RotorCodes<kBits>;
  static constexpr int kGroup = 8;
  static constexpr KvScale kScales[] = {KvScale::unbiased, KvScale::norm, KvScale::lsq};
  static constexpr bool kCanWeigh = true;
  static constexpr LevelTable<kBits> kLevels = Codes::kLevels;

  RIDGE_HD static int64_t row_bytes(int head_dim) { return Codes::bytes(head_dim) + 2; }

  RIDGE_HD static int encode(const float* in, int head_dim, const KvCoding& coding, std::byte* row) {
    int saturated = 0;
    double norm2 = 0;
    for (int i = 0; i < head_dim; ++i) {
      const double x = saturate_f16(in[i], saturated);
      norm2 += x * x;
    }
    const float norm = float(std::sqrt(norm2));
    const float to_unit = norm > 0 ? std::sqrt(float(head_dim)) / norm : 0.0f;
    const typename Codes::Fit fit = coding.metric ? Codes::encode_weighted(in, head_dim, to_unit, coding, row)
                                                  : Codes::encode(in, head_dim, to_unit, row);
    const uint16_t scale = f32_to_f16(saturate_f16(fit.scale(coding.scale), saturated));
    std::memcpy(row + Codes::bytes(head_dim), &scale, 2);
    return saturated;
  }

  RIDGE_HD static float row_scale(const std::byte* row, int head_dim, const KvCoding&) {
    uint16_t half;
    std::memcpy(&half, row + Codes::bytes(head_dim), 2);
    return f16_to_f32(half);
  }
  RIDGE_HD static void decode(const std::byte* row, int head_dim, const KvCoding& coding, float* out) {
    Codes::decode(row, head_dim, row_scale(row, head_dim, coding), out);
  }
};

}  // namespace ridge
