// KV p8: signed bytes with one fp16 scale per 32 values, in two planes; 8.5 bits per value.
//
// Row: head_dim bytes of codes, four to a 32-bit word in order, then head_dim / 32 scales. With scale rule absmax the
// numbers are q8_0's; the layout differs: its code words are aligned, so four-way int8 dot products take them without a
// change. Rules, rounding and error: format/kv_int8.h. Source of the layout: "packed16" K in RoxxY.
#pragma once

#include "format/kv_int8.h"

namespace ridge {

struct KvP8 {
  static constexpr const char* kName = "p8";
  static constexpr KvPolicy kPolicy{};
  static constexpr int kGroup = 32;
  static constexpr KvScale kScales[] = {KvScale::absmax, KvScale::lsq};

  RIDGE_HD static int64_t row_bytes(int head_dim) { return head_dim + head_dim / kGroup * int64_t(2); }
  RIDGE_HD static int encode(const float* in, int head_dim, const KvCoding& coding, std::byte* row) {
    int saturated = 0;
    for (int first = 0; first < head_dim; first += kGroup) {
      const uint16_t scale = encode_int8(in + first, kGroup, coding.scale, row + first, saturated);
      std::memcpy(row + head_dim + first / kGroup * 2, &scale, 2);
    }
    return saturated;
  }
  RIDGE_HD static void decode(const std::byte* row, int head_dim, const KvCoding&, float* out) {
    for (int first = 0; first < head_dim; first += kGroup)
      decode_int8(row + first, kGroup, row + head_dim + first / kGroup * 2, out + first);
  }
};

}  // namespace ridge
