// KV i8r: signed bytes with one fp16 scale per row; 8.125 bits per value at head_dim 128.
//
// Row: head_dim bytes of codes in order, then the scale; value = code * scale. Rules, rounding and error:
// format/kv_int8.h. The rotor formats keep the rows of their window in it: a rotated row seldom has the outliers that
// would make its one scale coarse. Source: our own.
#pragma once

#include "format/kv_int8.h"

namespace ridge {

struct KvI8r {
  static constexpr const char* kName = "i8r";
  static constexpr KvPolicy kPolicy{};
  static constexpr int kGroup = 1;
  static constexpr KvScale kScales[] = {KvScale::absmax, KvScale::lsq};

  RIDGE_HD static int64_t row_bytes(int head_dim) { return int64_t(head_dim) + 2; }
  RIDGE_HD static int encode(const float* in, int head_dim, const KvCoding& coding, std::byte* row) {
    int saturated = 0;
    const uint16_t scale = encode_int8(in, head_dim, coding.scale, row, saturated);
    std::memcpy(row + head_dim, &scale, 2);
    return saturated;
  }
  RIDGE_HD static void decode(const std::byte* row, int head_dim, const KvCoding&, float* out) {
    decode_int8(row, head_dim, row + head_dim, out);
  }
};

}  // namespace ridge
