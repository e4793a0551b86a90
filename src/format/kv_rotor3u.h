// rotor-3u: 3-bit codes under the assumption that every row has norm 1; 3 bits per value.
//
// PlanarQuant-3 as published with rocm-cpp: u = x * sqrt(D) coded directly, value = level / sqrt(D), planar rotation,
// no scale, no centring, no exact rows. Kept to reproduce what it does to rows whose norm is not 1: they lose it.
// Values of which less than half is left are counted as saturated.
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
