// rotor-3u: 3-bit codes under the assumption that every row has norm 1; 3 bits per value. This format destroys the
// model.
//
// PlanarQuant-3 as published with rocm-cpp: u = x sqrt(D) coded directly against rotor-3's levels, value = level /
// sqrt(D), planar rotation, no scale, no centring, no exact rows. Whatever the norm of a row was, the decoded row has a
// norm between 0.2451 and 2.1520, because all levels do. Keys and values of real models have no such norm: rows longer
// than that keep little but their signs, scores and attention outputs lose their size, and the model's predictions are
// lost with them. The format is kept to reproduce that failure, which docs/results.md measures, and is good for nothing
// else: a row needs its scale (rotor-3), or at least its head does (rotor-3s).
//
// Layout: 3 D / 8 bytes of codes, code k at bits 3k .. 3k+2. Values beyond twice the outermost level, of which less
// than half is left, are counted as saturated. Source: PlanarQuant-3 in rocm-cpp.
#pragma once

#include "format/kv_rotor.h"

namespace ridge {

struct KvRotor3u {
  using Codes = RotorCodes<3>;
  static constexpr const char* kName = "rotor-3u";
  static constexpr KvPolicy kPolicy{.rotation = Rotation::planar};
  static constexpr int kGroup = 8;

  RIDGE_HD static int64_t row_bytes(int head_dim) { return Codes::bytes(head_dim); }
  RIDGE_HD static int encode(const float* in, int head_dim, const KvCoding&, std::byte* row) {
    return Codes::encode(in, head_dim, std::sqrt(float(head_dim)), row).lost;
  }
  RIDGE_HD static float row_scale(const std::byte*, int head_dim, const KvCoding&) {
    return 1.0f / std::sqrt(float(head_dim));
  }
  RIDGE_HD static void decode(const std::byte* row, int head_dim, const KvCoding& coding, float* out) {
    Codes::decode(row, head_dim, row_scale(row, head_dim, coding), out);
  }
};

}  // namespace ridge
