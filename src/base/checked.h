// Checked integer arithmetic for sizes that come from files. One place, used by every parser.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace ridge {

/// a + b, or nothing when it does not fit in 64 bits.
inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

/// a * b, or nothing when it does not fit in 64 bits.
inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// Product of all dimensions, or nothing on a negative dimension or overflow of int64.
inline std::optional<int64_t> checked_product(std::span<const int64_t> dims) {
  int64_t product = 1;
  for (const int64_t dim : dims)
    if (dim < 0 || __builtin_mul_overflow(product, dim, &product)) return std::nullopt;
  return product;
}

/// `value` rounded up to a multiple of `alignment` (> 0), or nothing on overflow.
inline std::optional<uint64_t> checked_align(uint64_t value, uint64_t alignment) {
  const uint64_t rest = value % alignment;
  return rest == 0 ? std::optional(value) : checked_add(value, alignment - rest);
}

/// True when [offset, offset + size) lies inside a buffer of `total` bytes.
inline bool span_fits(uint64_t offset, uint64_t size, uint64_t total) {
  return offset <= total && size <= total - offset;
}

}  // namespace ridge
