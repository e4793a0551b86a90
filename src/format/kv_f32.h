// KV f32: every value as it is, little-endian, 32 bits each.
//
// For comparing the engine with references: no cache rounding in the way. NaN and infinity become 0 and are counted.
#pragma once

#include <cmath>
#include <cstring>

#include "format/kv_format.h"

namespace ridge {

struct KvF32 {
  static constexpr const char* kName = "f32";
  static constexpr KvPolicy kPolicy{};
  static constexpr int kGroup = 1;
  RIDGE_HD static int64_t row_bytes(int head_dim) { return 4 * int64_t(head_dim); }
  RIDGE_HD static int encode(const float* in, int head_dim, const KvCoding&, std::byte* row) {
    int replaced = 0;
    for (int i = 0; i < head_dim; ++i) {
      const float value = std::isfinite(in[i]) ? in[i] : (++replaced, 0.0f);
      std::memcpy(row + 4 * i, &value, 4);
    }
    return replaced;
  }
  RIDGE_HD static void decode(const std::byte* row, int head_dim, const KvCoding&, float* out) {
    std::memcpy(out, row, 4 * size_t(head_dim));
  }
};

}  // namespace ridge
