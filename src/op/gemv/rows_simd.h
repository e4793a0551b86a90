// Products in float for every weight format, of any number of tokens: this file's tiles for a few, the strips of
// op/gemm/tiles_simd.h for more. f32, f16 and bf16 rows are read where they lie; other formats decode a block of columns
// first (op/simd/decode.h, or the format's reference where that has no row), so a format has working products without a
// line of its own.
//
// The order of sums is one for every number of tokens, so a token's results are the same bits alone and among others:
// columns in blocks of kBlockColumns; in a block kLanes chains, of which chain i takes columns i, i + kLanes, ... one
// after another, columns past the row's end counting as zeros; the chains are added as Simd::sum_each adds lanes; blocks
// are added in order. Here a vector holds the chains of one output; in a strip it holds one chain of many outputs.
#pragma once

#include <bit>

#include "op/linear.h"
#include "op/simd/decode.h"
#include "op/simd/unrolled.h"

namespace ridge {
namespace {

constexpr int64_t kBlockColumns = 1024;  // every group divides it; of x, 16 KiB for four tokens stay in L1
constexpr int kFewTokens = 4;

/// kLanes values from `first` on, zeros from n on.
template <class Load>
inline Simd::F load_part(const std::byte* row, int64_t first, int64_t n) {
  float part[Simd::kLanes] = {};
  for (int64_t i = first; i < n; ++i) part[i - first] = Load::one(row, i);
  return Simd::load(part);
}

/// Rows of weights, a block of columns of each.
struct BlockRows {
  const std::byte* first;
  int64_t stride;  ///< bytes from one row to the next
  int64_t n_rows;
  int64_t n_columns;
};

/// y[t][r] (+)= <row r, x[t]> over a block for kTokens tokens and up to kRows rows; past the last row it is read again.
/// A vector of sums is one output's, slot(t * kRows + r) of Simd::sum_each.
template <class Load, int kRows, int kTokens>
inline void few_tile(const BlockRows& w, const float* x, int64_t x_stride, float* y, int64_t y_stride, bool add) {
  static_assert(kRows * kTokens <= Simd::kLanes);
  constexpr int kLanes = Simd::kLanes;
  const int n_rows = int(std::min<int64_t>(kRows, w.n_rows));
  const std::byte* rows[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = w.first + std::min(r, n_rows - 1) * w.stride;
  Simd::F sum[kLanes];
  unrolled<kLanes>([&](auto i) { sum[i] = Simd::zero(); });
  const auto step = [&](auto load_row, auto load_x) __attribute__((always_inline)) {
    Simd::F at_row[kRows];
    unrolled<kRows>([&](auto r) { at_row[r] = load_row(rows[r]); });
    unrolled<kTokens>([&](auto t) {
      const Simd::F at = load_x(x + t * x_stride);
      unrolled<kRows>([&](auto r) {
        constexpr int kSlot = Simd::slot(t * kRows + r);
        sum[kSlot] = Simd::fma(at_row[r], at, sum[kSlot]);
      });
    });
  };
  int64_t d = 0;
  for (; d + kLanes <= w.n_columns; d += kLanes)
    step(
        [d](const std::byte* row) __attribute__((always_inline)) {
          __builtin_prefetch(row + Load::kBytes * d + PF);
          return Load::load(row, d);
        },
        [d](const float* token) __attribute__((always_inline)) { return Simd::load(token + d); });
  if (d < w.n_columns)
    step([&](const std::byte* row) { return load_part<Load>(row, d, w.n_columns); },
         [&](const float* token) {
           return load_part<LoadF32>(reinterpret_cast<const std::byte*>(token), d, w.n_columns);
         });
  float sums[kLanes];
  Simd::store(sums, Simd::sum_each(sum));
  for (int t = 0; t < kTokens; ++t)
    for (int r = 0; r < n_rows; ++r) {
      float& out = y[t * y_stride + r];
      out = (add ? out : 0.0f) + sums[t * kRows + r];
    }
}

/// y [n_tokens, rows of the block] (+)= the block's part of the product; x and y start at its first column and row.
template <class Load>
void few_block(const BlockRows& w, View2<const float> x, View2<float> y, bool add) {
  for (int64_t t = 0; t < y.rows; t += kFewTokens) {
    const auto run = [&]<int kRows, int kTokens>() {
      for (int64_t r = 0; r < w.n_rows; r += kRows)
        few_tile<Load, kRows, kTokens>({w.first + r * w.stride, w.stride, w.n_rows - r, w.n_columns}, &x(t, 0), x.stride,
                                       &y(t, r), y.stride, add);
    };
    constexpr int kRows = Simd::kLanes / kFewTokens;
    switch (y.rows - t) {
      case 1: run.template operator()<R1, 1>(); break;
      case 2: run.template operator()<2 * kRows, 2>(); break;
      case 3: run.template operator()<kRows, 3>(); break;
      default: run.template operator()<kRows, 4>();
    }
  }
}

void run_few(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  const int64_t rows_at_once = y.rows == 1 ? R1 : y.rows == 2 ? Simd::kLanes / 2: Simd::kLanes / 4;
  const int64_t row_bytes = w.format->row_bytes(w.n_in);
  // About 128 KiB of weights a task: enough to amortise the hand-out, small enough to balance.
  const int64_t rows_per_task = std::max<int64_t>(1, 131072 / row_bytes / rows_at_once) * rows_at_once;
  const bool in_place = w.format->group == 1;
  float* buffers =
      in_place ? nullptr : context.scratch[0].ensure<float>(context.pool.size() * rows_at_once * kBlockColumns);
  const RowDecoder decode = row_decoder(*w.format);
  const auto product = w.format->name == F16::kName    ? few_block<LoadF16>
                       : w.format->name == BF16::kName ? few_block<LoadBF16>
                                                       : few_block<LoadF32>;
  context.pool.for_each((w.n_out + rows_per_task - 1) / rows_per_task, [&](int64_t task, int thread) {
    const int64_t last = std::min(w.n_out, (task + 1) * rows_per_task);
    for (int64_t first = task * rows_per_task; first < last; first += rows_at_once)
      for (int64_t column = 0; column < w.n_in; column += kBlockColumns) {
        BlockRows block{w.rows + first * row_bytes + w.format->row_bytes(column), row_bytes,
                        std::min(rows_at_once, last - first), std::min(kBlockColumns, w.n_in - column)};
        if (!in_place) {
          float* const buffer = buffers + thread * rows_at_once * kBlockColumns;
          for (int64_t r = 0; r < block.n_rows; ++r)
            decode(block.first + r * row_bytes, block.n_columns, buffer + r * kBlockColumns);
          block.first = reinterpret_cast<const std::byte*>(buffer);
          block.stride = 4 * kBlockColumns;
        }
        product(block, {&x(0, column), x.rows, block.n_columns, x.stride},
                {&y(0, first), y.rows, block.n_rows, y.stride}, column > 0);
      }
  });
}

}  // namespace
}  // namespace ridge
