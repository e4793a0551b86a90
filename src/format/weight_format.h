// WeightFormat: what every weight format on the shelf provides. A format is one header (packed struct, scalar
// reference encode/decode, facts) and one row in list.h; everything else derives from the row.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/f16.h"
#include "base/result.h"
#include "base/rng.h"

namespace ridge {

/// One row of the table of weight formats. Compare by address: there is exactly one object per format.
struct WeightFormat {
  std::string_view name;               ///< as typed on the command line and shown in tables
  int gguf_type;                       ///< type id in a GGUF file; negative when the format has none
  std::string_view safetensors_dtype;  ///< dtype in a safetensors header, empty when the format has none
  int group;                           ///< consecutive elements of a row that share a scale
  int block_bytes;                     ///< sizeof the packed struct of one group
  /// `n` elements (a multiple of group) from packed blocks to floats.
  void (*decode)(const std::byte* blocks, int64_t n, float* out);
  /// `n` finite floats (a multiple of group) to packed blocks; nullptr when the format is read only.
  void (*encode)(const float* in, int64_t n, std::byte* blocks) = nullptr;
  /// Fills blocks of `n` elements with random codes whose root mean square is about `size`; for formats without an
  /// encoder of all values.
  void (*fill)(Rng& rng, float size, int64_t n, std::byte* blocks) = nullptr;
  int tail_bytes = 0;  ///< bytes behind the last block of a tensor (i2_s: its scale), not counted in bits_per_weight
  /// Fails on blocks of `n` elements that mean nothing (a ternary code 3, a scale that is not finite), naming the
  /// element; nullptr when the format makes no such check.
  Status (*check)(const std::byte* blocks, int64_t n) = nullptr;
  /// Not 0 where a matrix has a scale beside its blocks, which encode() does not know: what the largest magnitude of a
  /// matrix is in units of that scale (nvfp4).
  float largest = 0;

  double bits_per_weight() const { return 8.0 * block_bytes / group; }
  /// Bytes of a row of `n` elements; n must be a multiple of group.
  int64_t row_bytes(int64_t n) const { return n / group * block_bytes; }
};

/// Random codes under a scale that makes `size` the root mean square of the block: F's set_scale(), else its members d
/// and dmin.
template <class F>
void fill_block(Rng& rng, float size, typename F::Block& block) {
  const auto set_scale = [&block](float scale) {
    if constexpr (requires { F::set_scale(block, scale); }) F::set_scale(block, scale);
    else block.d = f32_to_f16(scale);
    if constexpr (requires { block.dmin; }) block.dmin = f32_to_f16(1.5f * scale);
  };
  for (size_t i = 0; i < sizeof block; ++i) reinterpret_cast<uint8_t*>(&block)[i] = uint8_t(rng.next());
  set_scale(1);
  float values[F::kGroup], squares = 0;
  F::decode(block, values);
  for (const float value : values) squares += value * value;
  set_scale(size / std::sqrt(squares / F::kGroup));
}

/// Makes the row of a format type F { Block; kName; kGroup; decode(Block, float*) } and, where it has them,
/// encode(float*, Block), kGgufType, kDtype, kTailBytes, kLargest and problem(Block).
template <class F>
constexpr WeightFormat make_weight_format() {
  constexpr bool kEncodes = requires(typename F::Block block, const float* in) { F::encode(in, block); };
  constexpr bool kHasMatrixScale = requires { F::kLargest; };
  WeightFormat format{
      F::kName, -1, "", F::kGroup, int(sizeof(typename F::Block)), [](const std::byte* blocks, int64_t n, float* out) {
        typename F::Block block;  // copied: a tensor may start at any byte of a file
        for (int64_t i = 0; i < n / F::kGroup; ++i) {
          std::memcpy(&block, blocks + i * int64_t(sizeof block), sizeof block);
          F::decode(block, out + i * F::kGroup);
        }
      }};
  if constexpr (kEncodes)
    format.encode = [](const float* in, int64_t n, std::byte* blocks) {
      typename F::Block block;
      for (int64_t i = 0; i < n / F::kGroup; ++i) {
        F::encode(in + i * F::kGroup, block);
        std::memcpy(blocks + i * int64_t(sizeof block), &block, sizeof block);
      }
    };
  if constexpr (!kEncodes || kHasMatrixScale)
    format.fill = [](Rng& rng, float size, int64_t n, std::byte* blocks) {
      typename F::Block block;
      for (int64_t i = 0; i < n / F::kGroup; ++i) {
        fill_block<F>(rng, size, block);
        std::memcpy(blocks + i * int64_t(sizeof block), &block, sizeof block);
      }
    };
  if constexpr (requires { F::kGgufType; }) format.gguf_type = F::kGgufType;
  if constexpr (requires { F::kDtype; }) format.safetensors_dtype = F::kDtype;
  if constexpr (kHasMatrixScale) format.largest = F::kLargest;
  if constexpr (requires { F::kTailBytes; }) format.tail_bytes = F::kTailBytes;
  if constexpr (requires(typename F::Block block) { F::problem(block); })
    format.check = [](const std::byte* blocks, int64_t n) -> Status {
      typename F::Block block;
      for (int64_t i = 0; i < n / F::kGroup; ++i) {
        std::memcpy(&block, blocks + i * int64_t(sizeof block), sizeof block);
        if (const char* problem = F::problem(block))
          return bad_file("elements {} to {}: {}", i * F::kGroup, (i + 1) * F::kGroup - 1, problem);
      }
      return {};
    };
  return format;
}

}  // namespace ridge
