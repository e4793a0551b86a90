// Products in float for every weight format, of any number of tokens: this file's tiles for a few, the strips of
// op/gemm/strips_simd.h for more. f32, f16 and bf16 rows are read where they lie by a few tokens; all others are decoded
// block by block (op/simd/decode.h, or the format's reference where that has no row), so a format has working products
// without a line of its own.
//
// The order of sums is one for every number of tokens, so a token's results are the same bits alone and among others:
// columns in blocks of kBlockColumns; in a block kLanes chains, of which chain i takes columns i, i + kLanes, ... one
// after another, columns past the row's end counting as zeros; the chains are added as Simd::sum_each adds lanes; blocks
// are added in order. Here a vector holds the chains of one output, in a strip it holds one chain of many outputs.
#pragma once

#include "op/linear.h"
#include "op/simd/decode.h"
#include "op/simd/unrolled.h"

namespace ridge {
namespace {

constexpr int64_t kBlockColumns = BC;               // every group divides it; four rows of floats take half of L1
constexpr int64_t kBlockStride = kBlockColumns + 16;  // of decoded rows: a page apart they would share lines of L1
constexpr int kFewTokens = 4, kMostFew = MF;

/// Columns up to whole vectors.
inline int64_t whole_vectors(int64_t n) { return (n + Simd::kLanes - 1) / Simd::kLanes * Simd::kLanes; }

/// x with rows of whole vectors, zeros behind the last column.
inline View2<const float> whole_rows(AlignedBuffer& scratch, View2<const float> x) {
  const int64_t n = whole_vectors(x.cols);
  if (n == x.cols) return x;
  const View2<float> padded(scratch.ensure<float>(x.rows * n), x.rows, n);
  for (int64_t t = 0; t < x.rows; ++t)
    std::fill(std::copy_n(&x(t, 0), x.cols, &padded(t, 0)), &padded(t, 0) + n, 0.0f);
  return padded;
}

/// Decodes a block of columns of a row, zeros behind its last column.
inline void decode_part(const Linear& w, RowDecoder decode, int64_t row, int64_t column, float* out) {
  const int64_t n = std::min(kBlockColumns, w.n_in - column);
  decode(w.rows + w.format->row_bytes(row * w.n_in + column), n, out);
  std::fill(out + n, out + whole_vectors(n), 0.0f);
}

/// <row r, x[t]> over n columns in lane t * kRows + r.
template <class Load, int kRows, int kTokens>
inline Simd::F few_dots(const std::byte* const* rows, const float* x, int64_t x_stride, int64_t n) {
  static_assert(kRows * kTokens <= Simd::kLanes);
  Simd::F sum[Simd::kLanes];
  unrolled<Simd::kLanes>([&](auto i) { sum[i] = Simd::zero(); });
  for (int64_t d = 0; d < n; d += Simd::kLanes) {
    Simd::F w[kRows];
    unrolled<kRows>([&](auto r) {
      w[r] = Load::load(rows[r], d);
      __builtin_prefetch(rows[r] + Load::kBytes * d + 1024);
    });
    unrolled<kTokens>([&](auto t) {
      const Simd::F at = Simd::load(x + t * x_stride + d);
      unrolled<kRows>([&](auto r) {
        constexpr int kSlot = Simd::slot(t * kRows + r);
        sum[kSlot] = Simd::fma(w[r], at, sum[kSlot]);
      });
    });
  }
  return Simd::sum_each(sum);
}

/// y of up to kRows rows of w and up to kMostFew tokens. `decoded` has room for kRows rows of a block.
template <class Load, int kRows>
void few_rows(const Linear& w, RowDecoder decode, int64_t first, int64_t n_rows, View2<const float> x, View2<float> y,
              float* decoded) {
  float total[kMostFew / kFewTokens][Simd::kLanes] = {};
  for (int64_t column = 0; column < w.n_in; column += kBlockColumns) {
    const std::byte* rows[kRows];
    for (int r = 0; r < kRows; ++r) {  // past the last row it is read again
      const int64_t row = first + std::min<int64_t>(r, n_rows - 1);
      rows[r] = w.rows + w.format->row_bytes(row * w.n_in + column);
      if (!decode) continue;
      decode_part(w, decode, row, column, decoded + r * kBlockStride);
      rows[r] = reinterpret_cast<const std::byte*>(decoded + r * kBlockStride);
    }
    for (int64_t t = 0; t < y.rows; t += kFewTokens) {
      const auto run = [&]<int kTokens>() {
        float* const sums = total[t / kFewTokens];
        Simd::store(sums, Simd::add(Simd::load(sums), few_dots<Load, kRows, kTokens>(
                                                          rows, &x(t, column), x.stride,
                                                          std::min(kBlockColumns, x.cols - column))));
      };
      if constexpr (kRows * kFewTokens > Simd::kLanes) {
        run.template operator()<1>();
      } else {
        switch (y.rows - t) {
          case 1: run.template operator()<1>(); break;
          case 2: run.template operator()<2>(); break;
          case 3: run.template operator()<3>(); break;
          default: run.template operator()<4>();
        }
      }
    }
  }
  for (int64_t t = 0; t < y.rows; ++t)
    for (int64_t r = 0; r < n_rows; ++r) y(t, first + r) = total[t / kFewTokens][t % kFewTokens * kRows + r];
}

template <int kRows>
void run_few(CpuContext& context, const Linear& w, View2<const float> x_in, View2<float> y) {
  const View2<const float> x = whole_rows(context.scratch[1], x_in);
  // About 128 KiB of weights a task: enough to amortise the hand-out, small enough to balance.
  const int64_t rows_per_task = std::max<int64_t>(1, 131072 / w.format->row_bytes(w.n_in) / kRows) * kRows;
  const bool in_place = w.format->group == 1 && x.cols == w.n_in;
  const RowDecoder decode = in_place ? nullptr : row_decoder(*w.format);
  float* buffers = context.scratch[0].ensure<float>(context.pool.size() * kRows * kBlockStride);
  const auto rows = in_place && w.format->name == F16::kName    ? few_rows<LoadF16, kRows>
                    : in_place && w.format->name == BF16::kName ? few_rows<LoadBF16, kRows>
                                                                : few_rows<LoadF32, kRows>;
  context.pool.for_each((w.n_out + rows_per_task - 1) / rows_per_task, [&](int64_t task, int thread) {
    const int64_t last = std::min(w.n_out, (task + 1) * rows_per_task);
    for (int64_t first = task * rows_per_task; first < last; first += kRows)
      rows(w, decode, first, std::min<int64_t>(kRows, last - first), x, y, buffers + thread * kRows * kBlockStride);
  });
}

}  // namespace
}  // namespace ridge
