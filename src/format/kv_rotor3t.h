// rotor-3t: rotated KV codes of a trellis, 3 bits a value and one fp16 scale per row; 3.125 bits per value at head_dim
// 128, as rotor-3.
//
// A value's level depends on its own code and on the two codes before it in the row's chain, which runs over channels
// 0, 32, 64, .. 1, 33, 65, ..: format/trellis.h has the rule, the two tables of 8 and the search of the encoder. The
// mean squared error of normal values is 0.0226 of their variance; rotor-3's is 0.0345. u = 46 x sqrt(D) / |x| meets
// integer levels within -120 and 122, and a value reads as level * scale / 32. Rounding nearest searches for the least
// squared error, rounding weighted for the least error under the metric. Rules of scale as in format/kv_rotor.h.
// Layout: 3 D / 8 bytes of codes, code k of the chain at bits 3k .. 3k+2, then the scale. head_dim is a multiple of 32.
// Source: our own; trellis codes are known from speech coding, and for weights from QTIP.
#pragma once

#include "format/kv_rotor.h"
#include "format/trellis.h"

namespace ridge {

struct KvRotor3t {
  using Row = RotorRow<3>;  ///< of the same bytes
  static constexpr const char* kName = "rotor-3t";
  static constexpr KvPolicy kPolicy = kRotorPolicy;
  static constexpr int kGroup = 32;
  static constexpr std::span<const KvScale> kScales = Row::kScales;
  static constexpr bool kCanWeigh = true;
  static constexpr bool kFactored = true;
  static constexpr float kUnit = 1.0f / 32;

  RIDGE_HD static int64_t code_bytes(int head_dim) { return Row::Codes::bytes(head_dim); }
  RIDGE_HD static int64_t row_bytes(int head_dim) { return Row::row_bytes(head_dim); }

  static int encode(const float* in, int head_dim, const KvCoding& coding, std::byte* row) {
    int saturated = 0;
    const float norm = length_of(in, head_dim, saturated);
    // No fp16 scale is as small as those of shorter rows.
    const float to_levels = norm > 1e-30f ? kTrellisDeviation * std::sqrt(float(head_dim)) / norm : 0.0f;
    float u[kMaxRoundingDim];
    int counted = 0;
    for (int k = 0; k < head_dim; ++k) u[k] = saturate_f16(in[trellis_channel(k, head_dim)], counted) * to_levels;
    TrellisRow coded;
    (coding.kernels.trellis ? coding.kernels.trellis : code_trellis)(u, coding.metric, head_dim, coded);

    Row::Codes::Fit fit;
    for (int k = 0; k < head_dim; ++k) {
      const double weight = coding.metric ? double(coding.metric[int64_t(k) * (head_dim + 1)]) : 1.0;
      const double value = weight * coded.of_values[k], level = weight * coded.of_levels[k];
      fit.size2 += value * coded.of_values[k];
      fit.dot += value * coded.of_levels[k];
      fit.levels2 += level * coded.of_levels[k];
    }
    // From u and integer levels to x and levels in units of the scale.
    const double back = to_levels > 0 ? 1.0 / to_levels : 0.0;
    fit.size2 *= back * back;
    fit.dot *= back * kUnit;
    fit.levels2 *= double(kUnit) * kUnit;
    for (int first = 0; first < head_dim; first += 8) {
      uint32_t word = 0;
      for (int i = 0; i < 8; ++i) word |= uint32_t(coded.codes[first + i]) << (3 * i);
      std::memcpy(row + 3 * (first / 8), &word, 3);
    }
    const uint16_t scale = f32_to_f16(saturate_f16(fit.scale(coding.scale), saturated));
    std::memcpy(row + code_bytes(head_dim), &scale, 2);
    return saturated;
  }

  RIDGE_HD static float row_scale(const std::byte* row, int head_dim, const KvCoding& coding) {
    return Row::row_scale(row, head_dim, coding);
  }
  RIDGE_HD static void decode(const std::byte* row, int head_dim, const KvCoding& coding, float* out) {
    const float step = row_scale(row, head_dim, coding) * kUnit;
    uint32_t window = 0;
    for (int first = 0; first < head_dim; first += 8) {
      uint32_t word = 0;
      std::memcpy(&word, row + 3 * (first / 8), 3);
      for (int i = 0; i < 8; ++i) {
        window = window >> 3 | (word >> (3 * i) & 7) << 4;
        out[trellis_channel(first + i, head_dim)] = float(trellis_level_at(int(window))) * step;
      }
    }
  }
};

}  // namespace ridge
