// Shared code of q8_0 and q4_0: a row is head_dim / 32 blocks of the weight format of the same name, one behind the
// other.
//
// Codes, scale and error are the weight format's. Values beyond +-65504 become that before they are coded, NaN becomes
// 0; both are counted.
#pragma once

#include "format/kv_f16.h"

namespace ridge {

/// Rows of blocks of weight format F, whose scale rule is absmax.
template <class F>
struct KvBlocks {
  static constexpr KvPolicy kPolicy{};
  static constexpr int kGroup = F::kGroup;
  static constexpr KvScale kScales[] = {KvScale::absmax};
  RIDGE_HD static int64_t row_bytes(int head_dim) { return head_dim / kGroup * int64_t(sizeof(typename F::Block)); }
  RIDGE_HD static int encode(const float* in, int head_dim, const KvCoding&, std::byte* row) {
    int saturated = 0;
    for (int first = 0; first < head_dim; first += kGroup) {
      float values[kGroup];
      for (int i = 0; i < kGroup; ++i) values[i] = saturate_f16(in[first + i], saturated);
      typename F::Block block;
      F::encode(values, block);
      std::memcpy(row + first / kGroup * int64_t(sizeof block), &block, sizeof block);
    }
    return saturated;
  }
  RIDGE_HD static void decode(const std::byte* row, int head_dim, const KvCoding&, float* out) {
    for (int first = 0; first < head_dim; first += kGroup) {
      typename F::Block block;
      std::memcpy(&block, row + first / kGroup * int64_t(sizeof block), sizeof block);
      F::decode(block, out + first);
    }
  }
};

}  // namespace ridge
