// Values of f32, f16 and bf16 rows as vectors of floats. Include after a Simd struct.
#pragma once

#include <cstddef>

#include "format/plain.h"

namespace ridge {
namespace {

/// Element i of a row that may start at any byte of a file.
template <class T>
inline T element(const std::byte* row, int64_t i) {
  T value;
  __builtin_memcpy(&value, row + i * int64_t(sizeof value), sizeof value);
  return value;
}

struct LoadF32 {
  static constexpr int kBytes = 4;
  static Simd::F load(const std::byte* row, int64_t i) { return Simd::load(row + 4 * i); }
  static float one(const std::byte* row, int64_t i) { return element<float>(row, i); }
};
struct LoadF16 {
  static constexpr int kBytes = 2;
  static Simd::F load(const std::byte* row, int64_t i) { return Simd::load_f16(row + 2 * i); }
  static float one(const std::byte* row, int64_t i) { return f16_to_f32(element<uint16_t>(row, i)); }
};
struct LoadBF16 {
  static constexpr int kBytes = 2;
  static Simd::F load(const std::byte* row, int64_t i) { return Simd::load_bf16(row + 2 * i); }
  static float one(const std::byte* row, int64_t i) { return bf16_to_f32(element<uint16_t>(row, i)); }
};

}  // namespace
}  // namespace ridge
