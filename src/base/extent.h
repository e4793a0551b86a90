// A run of numbers.
#pragma once

#include <cstdint>

namespace ridge {

/// The numbers [first, first + count): of heads, rows, columns or values.
struct Extent {
  int64_t first = 0, count = 0;

  int64_t end() const { return first + count; }
};

}  // namespace ridge
