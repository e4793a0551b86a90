// Views: pointer + shape, row-major, last index contiguous. No ownership.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ridge {

/// A [rows, cols] matrix; `stride` elements from one row to the next.
template <class T>
struct View2 {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  View2() = default;
  View2(T* first, int64_t n_rows, int64_t n_cols) : View2(first, n_rows, n_cols, n_cols) {}
  View2(T* first, int64_t n_rows, int64_t n_cols, int64_t row_stride)
      : data(first), rows(n_rows), cols(n_cols), stride(row_stride) {}
  operator View2<const T>() const { return {data, rows, cols, stride}; }  // NOLINT: implicit on purpose

  T& operator()(int64_t r, int64_t c) const { return data[r * stride + c]; }
  std::span<T> row(int64_t r) const { return {data + r * stride, size_t(cols)}; }
  /// Rows [first, first + count).
  View2 slice(int64_t first, int64_t count) const { return {data + first * stride, count, cols, stride}; }
};

}  // namespace ridge
