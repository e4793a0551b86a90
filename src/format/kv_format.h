// KvFormat: what every KV cache format on the shelf provides.
//
// The unit is a row: the head_dim values of one token and one kv head, already in cache space (rotated and centred by
// the cache, model/kv_cache.h). A row is coded and decoded on its own, so truncate, copy and split-KV need no care.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ridge {

enum class Rotation : uint8_t { none, planar, hadamard };

/// How a cache treats rows of a format unless told otherwise on the command line.
struct KvPolicy {
  Rotation rotation = Rotation::none;
  bool centre = false;  ///< subtract the per-channel mean of the first tokens (exact, see kv_cache.h)
  int window = 0;       ///< newest tokens kept in f16
  int sinks = 0;        ///< first tokens kept in f16
};

/// One row of the table of KV formats. Compare by address.
struct KvFormat {
  std::string_view name;
  KvPolicy policy;  ///< defaults
  int group;        ///< head_dim must be a multiple of this
  int64_t (*row_bytes)(int head_dim);
  /// Codes one row. Returns how many values were saturated or replaced (NaN, infinity, scale overflow); 0 is normal.
  int (*encode)(const float* in, int head_dim, std::byte* row);
  /// The reference decode of one row.
  void (*decode)(const std::byte* row, int head_dim, float* out);

  double bits_per_value(int head_dim) const { return 8.0 * double(row_bytes(head_dim)) / head_dim; }
};

/// Makes the row of a format type F { kName; kPolicy; kGroup; row_bytes(); encode(); decode() }.
template <class F>
constexpr KvFormat make_kv_format() {
  return {F::kName, F::kPolicy, F::kGroup, F::row_bytes, F::encode, F::decode};
}

}  // namespace ridge
