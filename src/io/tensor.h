// A tensor inside a mapped file, the same for every container, and the one check of its shape that all containers
// share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/weight_format.h"

namespace ridge::io {

struct Tensor {
  std::string name;
  const WeightFormat* format = nullptr;
  std::vector<int64_t> shape;       ///< row-major, last index contiguous: [n_out, n_in] for a matrix
  std::span<const std::byte> data;  ///< size = format bytes of the shape, checked; inside the mapped file, or unpacked
  float scale = 1;                  ///< of the whole tensor, on top of what its blocks decode to
  std::span<const int32_t> order = {};  ///< where column i of a matrix belongs; empty: at place i
};

/// Not on the shelf: 32-bit integers, in which checkpoints pack codes (io/packed.h). Named "i32".
const WeightFormat& packed_words();
/// Likewise bytes. Named "u8".
const WeightFormat& packed_bytes();
/// Likewise floats of 8 bits (format/e4m3.h), which need scales. Named "f8_e4m3".
const WeightFormat& packed_e4m3();
/// Not on the shelf: 64-bit integers, in which other programs keep token ids. Named "i64".
const WeightFormat& wide_words();
/// Whether it is one of these: no format of weights.
inline bool is_off_shelf(const WeightFormat& format) {
  return &format == &packed_words() || &format == &packed_bytes() || &format == &packed_e4m3() ||
         &format == &wide_words();
}

/// Bytes that a tensor of this shape takes in this format. Fails on no dimensions, a dimension below 1, a product past
/// 63 bits, and rows that the format's group does not divide; the message starts with the fault, not with a name.
Result<uint64_t> storage_bytes(const WeightFormat& format, std::span<const int64_t> shape);

/// The factor that the decoded blocks still need: the f32 behind them in a format with one scale per tensor (i2_s), the
/// tensor's own scale in all others. Fails when it is not finite; the message has no name.
Result<float> tensor_scale(const Tensor& tensor);

}  // namespace ridge::io
