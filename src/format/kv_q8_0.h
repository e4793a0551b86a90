// KV q8_0: the blocks of weight format q8_0 (fp16 scale and 32 signed bytes), head_dim / 32 of them a row; 8.5 bits per
// value. The reference point for every compressed K.
//
// Codes, scale and error are those of format/q8_0.h (scale rule absmax). Values beyond +-65504 become that before they
// are coded, NaN becomes 0; both are counted.
#pragma once

#include "format/kv_f16.h"
#include "format/q8_0.h"

namespace ridge {

struct KvQ8_0 {
  static constexpr const char* kName = "q8_0";
  static constexpr KvPolicy kPolicy{};
  static constexpr int kGroup = Q8_0::kGroup;
  static constexpr KvScale kScales[] = {KvScale::absmax};
  RIDGE_HD static int64_t row_bytes(int head_dim) { return head_dim / kGroup * int64_t(sizeof(Q8_0::Block)); }
  RIDGE_HD static int encode(const float* in, int head_dim, const KvCoding&, std::byte* row) {
    int saturated = 0;
    for (int first = 0; first < head_dim; first += kGroup) {
      float values[kGroup];
      for (int i = 0; i < kGroup; ++i) values[i] = saturate_f16(in[first + i], saturated);
      Q8_0::Block block;
      Q8_0::encode(values, block);
      std::memcpy(row + first / kGroup * int64_t(sizeof block), &block, sizeof block);
    }
    return saturated;
  }
  RIDGE_HD static void decode(const std::byte* row, int head_dim, const KvCoding&, float* out) {
    for (int first = 0; first < head_dim; first += kGroup) {
      Q8_0::Block block;
      std::memcpy(&block, row + first / kGroup * int64_t(sizeof block), sizeof block);
      Q8_0::decode(block, out + first);
    }
  }
};

}  // namespace ridge
