// A tensor inside a mapped file, as every container gives it, and the one check of its shape that all containers share.
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

/// Bytes that a tensor of this shape takes in this format. Fails on no dimensions, a dimension below 1, a product past
/// 63 bits, and rows that the format's group does not divide; the message starts with the fault, not with a name.
Result<uint64_t> storage_bytes(const WeightFormat& format, std::span<const int64_t> shape);

}  // namespace ridge::io
