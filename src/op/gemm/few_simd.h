// Products of a few tokens in float: weight rows as they lie, kLanes / 4 rows by 4 tokens at a time. A row's values are
// loaded (and converted) once for four tokens, so f16 weights are bound by memory up to eight tokens or so; past
// kMostFew tokens the strips of tiles_simd.h, which pay for turning the weights once, take less time.
#pragma once

#include "op/linear.h"
#include "op/simd/decode.h"
#include "op/simd/unrolled.h"

namespace ridge {
namespace {

constexpr int kFewTokens = 4, kFewRows = Simd::kLanes / kFewTokens;
constexpr int64_t kFewColumns = 1024;  // of x at a time: 16 KiB for four tokens stay in L1

/// y[t][r] += <row r, x[t]> over n columns for kTokens tokens; lane t * kFewRows + r of the sums.
template <class Load, int kTokens>
inline void few_dots(const std::byte* const* rows, const float* x, int64_t x_stride, int64_t n, float* y,
                     int64_t y_stride, int64_t n_rows) {
  constexpr int kLanes = Simd::kLanes;
  Simd::F sum[kLanes];
  unrolled<kLanes>([&](auto i) { sum[i] = Simd::zero(); });
  int64_t d = 0;
  for (; d + kLanes <= n; d += kLanes) {
    Simd::F w[kFewRows];
    unrolled<kFewRows>([&](auto r) {
      w[r] = Load::load(rows[r], d);
      __builtin_prefetch(rows[r] + Load::kBytes * d + 1024);
    });
    unrolled<kTokens>([&](auto t) {
      const Simd::F at = Simd::load(x + t * x_stride + d);
      unrolled<kFewRows>([&](auto r) {
        constexpr int kSlot = Simd::slot(t * kFewRows + r);
        sum[kSlot] = Simd::fma(w[r], at, sum[kSlot]);
      });
    });
  }
  float sums[kLanes];
  Simd::store(sums, Simd::sum_each(sum));
  for (; d < n; ++d)
    for (int t = 0; t < kTokens; ++t)
      for (int r = 0; r < kFewRows; ++r) sums[t * kFewRows + r] += Load::one(rows[r], d) * x[t * x_stride + d];
  for (int t = 0; t < kTokens; ++t)
    for (int r = 0; r < n_rows; ++r) y[t * y_stride + r] += sums[t * kFewRows + r];
}

template <class Load>
void few_rows(const std::byte* const* rows, View2<const float> x, View2<float> y, int64_t first_row, int64_t n_rows) {
  for (int64_t t = 0; t < y.rows; ++t)
    for (int64_t r = 0; r < n_rows; ++r) y(t, first_row + r) = 0;
  for (int64_t column = 0; column < x.cols; column += kFewColumns) {
    const int64_t n = std::min(kFewColumns, x.cols - column);
    const std::byte* from[kFewRows];
    for (int r = 0; r < kFewRows; ++r) from[r] = rows[r] + Load::kBytes * column;
    for (int64_t t = 0; t < y.rows; t += kFewTokens) {
      const auto run = [&]<int kTokens>() {
        few_dots<Load, kTokens>(from, &x(t, column), x.stride, n, &y(t, first_row), y.stride, n_rows);
      };
      switch (y.rows - t) {
        case 1: run.template operator()<1>(); break;
        case 2: run.template operator()<2>(); break;
        case 3: run.template operator()<3>(); break;
        default: run.template operator()<4>();
      }
    }
  }
}

void run_few(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  const int64_t row_bytes = w.format->row_bytes(w.n_in);
  const int64_t rows_per_task = std::max<int64_t>(kFewRows, 131072 / row_bytes / kFewRows * kFewRows);
  const bool in_place = w.format->group == 1;
  float* decoded = in_place ? nullptr : context.scratch[0].ensure<float>(context.pool.size() * kFewRows * w.n_in);
  const RowDecoder decode = row_decoder(*w.format);
  const auto run = w.format->name == F16::kName    ? few_rows<LoadF16>
                   : w.format->name == BF16::kName ? few_rows<LoadBF16>
                                                   : few_rows<LoadF32>;
  context.pool.for_each((w.n_out + rows_per_task - 1) / rows_per_task, [&](int64_t task, int thread) {
    const int64_t last = std::min(w.n_out, (task + 1) * rows_per_task);
    for (int64_t first = task * rows_per_task; first < last; first += kFewRows) {
      const int64_t n_rows = std::min<int64_t>(kFewRows, last - first);
      const std::byte* rows[kFewRows];
      for (int r = 0; r < kFewRows; ++r) {  // past the last row it is read again
        rows[r] = w.rows + (first + std::min<int64_t>(r, n_rows - 1)) * row_bytes;
        if (in_place) continue;
        float* buffer = decoded + (int64_t(thread) * kFewRows + r) * w.n_in;
        decode(rows[r], w.n_in, buffer);
        rows[r] = reinterpret_cast<const std::byte*>(buffer);
      }
      run(rows, x, y, first, n_rows);
    }
  });
}

}  // namespace
}  // namespace ridge
