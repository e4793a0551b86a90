// A tensor inside a mapped file, as every container gives it.
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

}  // namespace ridge::io
