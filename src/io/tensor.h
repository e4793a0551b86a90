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
  std::span<const std::byte> data;  ///< lies inside the mapped file; size = format bytes of the shape, checked
};

/// Not on the shelf: 32-bit integers, in which checkpoints pack codes (io/int4_packed.h). Named "i32".
const WeightFormat& packed_words();
/// Likewise bytes. Named "u8".
const WeightFormat& packed_bytes();
/// Not on the shelf: 64-bit integers, in which other programs keep token ids. Named "i64".
const WeightFormat& wide_words();
/// Whether it is one of these three: no format of weights.
inline bool is_integer(const WeightFormat& format) {
  return &format == &packed_words() || &format == &packed_bytes() || &format == &wide_words();
}

/// Bytes that a tensor of this shape takes in this format. Fails on no dimensions, a dimension below 1, a product past
/// 63 bits, and rows that the format's group does not divide; the message starts with the fault, not with a name.
Result<uint64_t> storage_bytes(const WeightFormat& format, std::span<const int64_t> shape);

/// The factor that the decoded blocks still need: the f32 behind them in a format with one scale per tensor (i2_s), 1
/// in all others. Fails when it is not finite; the message has no name.
Result<float> tensor_scale(const Tensor& tensor);

}  // namespace ridge::io
