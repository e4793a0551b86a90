// rotor-3: rotated 3-bit KV codes, one fp16 scale per row; 3.125 bits per value at head_dim 128.
//
// The row arrives rotated and centred (docs/formats/rotor-3.md). u = x * sqrt(D) / |x| is coded against the 8 Lloyd-Max
// levels of a standard normal, nearest by midpoints, ties up. The scale is n / |levels(codes)| rounded to fp16, so the
// decoded row keeps its norm. Layout: 3 D / 8 bytes of codes, code k at bits 3k .. 3k+2, then the scale.
// Source of the idea: PlanarQuant-3 in rocm-cpp, which has no scale and loses the signal; see docs/decisions.
#pragma once

#include <array>

#include "format/kv_f16.h"

namespace ridge {

struct KvRotor3 {
  static constexpr const char* kName = "rotor-3";
  static constexpr KvPolicy kPolicy{.rotation = Rotation::hadamard, .centre = true, .window = 32, .sinks = 4};
  static constexpr int kGroup = 8;
  static constexpr std::array<float, 8> kLevels = {-2.1519143f, -1.3439092f, -0.7560054f, -0.2451275f,
                                                   0.2451275f,  0.7560054f,  1.3439092f,  2.1519143f};

  RIDGE_HD static int64_t row_bytes(int head_dim) { return 3 * int64_t(head_dim) / 8 + 2; }

  RIDGE_HD static int encode(const float* in, int head_dim, std::byte* row) {
    int saturated = 0;
    double norm2 = 0;
    for (int i = 0; i < head_dim; ++i) {
      const double x = saturate_f16(in[i], saturated);
      norm2 += x * x;
    }
    const float norm = float(std::sqrt(norm2));
    const float to_unit = norm > 0 ? std::sqrt(float(head_dim)) / norm : 0.0f;

    constexpr std::array<float, 8> levels = kLevels;
    double levels2 = 0;
    for (int first = 0; first < head_dim; first += 8) {
      uint32_t word = 0;
      for (int i = 0; i < 8; ++i) {
        int ignored = 0;
        const int code = nearest(saturate_f16(in[first + i], ignored) * to_unit);
        levels2 += double(levels[size_t(code)]) * levels[size_t(code)];
        word |= uint32_t(code) << (3 * i);
      }
      std::memcpy(row + 3 * (first / 8), &word, 3);
    }
    const uint16_t scale = f32_to_f16(saturate_f16(norm / float(std::sqrt(levels2)), saturated));
    std::memcpy(row + 3 * (head_dim / 8), &scale, 2);
    return saturated;
  }

  RIDGE_HD static void decode(const std::byte* row, int head_dim, float* out) {
    uint16_t half;
    std::memcpy(&half, row + 3 * (head_dim / 8), 2);
    constexpr std::array<float, 8> levels = kLevels;
    const float scale = f16_to_f32(half);
    for (int first = 0; first < head_dim; first += 8) {
      uint32_t word = 0;
      std::memcpy(&word, row + 3 * (first / 8), 3);
      for (int i = 0; i < 8; ++i) out[first + i] = levels[(word >> (3 * i)) & 7u] * scale;
    }
  }

  /// Code of the nearest level; a value on a midpoint goes to the level above.
  RIDGE_HD static int nearest(float u) {
    constexpr std::array<float, 8> levels = kLevels;
    int code = 0;
    for (size_t i = 0; i + 1 < levels.size(); ++i) code += u >= 0.5f * (levels[i] + levels[i + 1]);
    return code;
  }
};

}  // namespace ridge
