// KvFormat: what every KV cache format on the shelf provides.
//
// The unit is a row: the head_dim values of one token and one kv head, already in cache space (rotated and centred by
// the cache, op/cache/append.h). A row is coded and decoded on its own, so truncate, copy and split-KV need no care.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "format/weighted_rounding.h"

namespace ridge {

enum class Rotation : uint8_t { none, planar, hadamard };

/// How the scale of a row or block is chosen.
enum class KvScale : uint8_t {
  none,      ///< there is none
  absmax,    ///< the largest value lands on the largest code
  norm,      ///< the decoded row has the norm of the original
  lsq,       ///< least squares: <x, q> / <q, q> for the codes q
  unbiased,  ///< <x, x> / <x, q>: unbiased along the original; the error is orthogonal to it
};

/// How values are rounded to codes.
enum class KvRounding : uint8_t {
  nearest,   ///< each to the nearest level
  weighted,  ///< so that the errors of a row cancel where they would be seen (format/weighted_rounding.h)
};

/// How a cache treats rows of a format unless told otherwise on the command line.
struct KvPolicy {
  Rotation rotation = Rotation::none;
  bool centre = false;  ///< subtract the mean of the first tokens, turned as RoPE turns rows (op/cache/centre.h)
  int window = 0;       ///< newest tokens kept in format `recent`
  int sinks = 0;        ///< first tokens kept in f16
  KvScale scale = KvScale::none;
  KvRounding rounding = KvRounding::nearest;
  std::string_view recent = "f16";  ///< format of the tokens in the window
};

/// Inputs of coding a row besides its values; the same for all rows of one KV head. Options of encoders belong here.
struct KvCoding {
  KvScale scale = KvScale::none;
  float fixed = 0;                ///< formats with head_scale: the scale of this kv head
  const float* metric = nullptr;  ///< weighted rounding: [head_dim, head_dim] in cache space; nullptr is nearest
  RoundRow round = nullptr;       ///< kernel of weighted rounding; nullptr is the reference
};

/// One row of the table of KV formats. Compare by address.
struct KvFormat {
  std::string_view name;
  KvPolicy policy;                  ///< defaults
  int group;                        ///< head_dim must be a multiple of this
  std::span<const KvScale> scales;  ///< the rules encode() knows; policy.scale is one of them
  bool can_weigh;                   ///< encode() rounds by KvCoding::metric when it is there
  bool head_scale;                  ///< one f32 per (layer, kv head) instead of scales in the rows: KvCoding::fixed
  int64_t (*row_bytes)(int head_dim);
  /// Codes one row. Returns how many values were saturated or replaced (NaN, infinity, scale overflow); 0 is normal.
  int (*encode)(const float* in, int head_dim, const KvCoding& coding, std::byte* row);
  /// The reference decode of one row coded with the same `coding`.
  void (*decode)(const std::byte* row, int head_dim, const KvCoding& coding, float* out);

  double bits_per_value(int head_dim) const { return 8.0 * double(row_bytes(head_dim)) / head_dim; }
};

inline constexpr KvScale kNoScale[] = {KvScale::none};

/// Makes the row of a format type F { kName; kPolicy; kGroup; row_bytes(); encode(); decode() }, with kScales where
/// there is a choice, kCanWeigh where codes can be rounded by a metric, and kHeadScale where the scale is not in the
/// row.
template <class F>
constexpr KvFormat make_kv_format() {
  KvFormat format{F::kName, F::kPolicy, F::kGroup, kNoScale, false, false, F::row_bytes, F::encode, F::decode};
  if constexpr (requires { F::kScales; }) format.scales = F::kScales;
  if constexpr (requires { F::kCanWeigh; }) format.can_weigh = F::kCanWeigh;
  if constexpr (requires { F::kHeadScale; }) format.head_scale = F::kHeadScale;
  if (format.policy.scale == KvScale::none) format.policy.scale = format.scales[0];
  return format;
}

}  // namespace ridge
