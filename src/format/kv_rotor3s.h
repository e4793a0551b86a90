// rotor-3s: rotor-3 without a scale in the row; 3 bits per value.
//
// Levels, codes and their layout are rotor-3's: 3 D / 8 bytes, nothing behind them. The scale is KvCoding::fixed, one
// f32 per (layer, kv head): the root mean square of the rotated and centred values of positions 0 to 63, sinks left
// out, frozen once 64 positions are held (op/cache/append.h). u = x / fixed, value = level * fixed. A row much longer
// than those is clipped at the outermost level; values beyond twice that level, of which less than half is left, are
// counted as saturated. Source: our own, the honest way to exactly 3 bits.
#pragma once

#include "format/kv_rotor.h"

namespace ridge {

struct KvRotor3s {
  using Codes = RotorCodes<3>;
  static constexpr const char* kName = "rotor-3s";
  static constexpr KvPolicy kPolicy = kRotorPolicy;
  static constexpr int kGroup = 8;
  static constexpr KvScale kScales[] = {KvScale::norm};
  static constexpr bool kCanWeigh = true;
  static constexpr bool kHeadScale = true;

  RIDGE_HD static int64_t row_bytes(int head_dim) { return Codes::bytes(head_dim); }
  RIDGE_HD static int encode(const float* in, int head_dim, const KvCoding& coding, std::byte* row) {
    const float to_unit = coding.fixed > 1e-38f ? 1.0f / coding.fixed : 0.0f;
    return coding.metric ? Codes::encode_weighted(in, head_dim, to_unit, coding, row).lost
                         : Codes::encode(in, head_dim, to_unit, row).lost;
  }
  RIDGE_HD static float row_scale(const std::byte*, int, const KvCoding& coding) { return coding.fixed; }
  RIDGE_HD static void decode(const std::byte* row, int head_dim, const KvCoding& coding, float* out) {
    Codes::decode(row, head_dim, coding.fixed, out);
  }
};

}  // namespace ridge
