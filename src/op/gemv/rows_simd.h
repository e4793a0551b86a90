// Matmuls in float for every weight format, of any number of tokens: this file's tiles for a few, the strips of
// op/gemv/strips_simd.h for more. Up to kMostFew tokens read f32, f16 and bf16 rows where they lie; all else is decoded
// block by block (op/simd/decode.h, or the format's reference where that has no row), so a format has working matmuls
// without a line of its own.
//
// The order of sums is one for every number of tokens, so a token's results are the same bits alone and among others.
// Columns are taken in blocks of kBlockColumns. A block has kLanes chains of fused multiply-adds: chain i takes columns
// i, i + kLanes, ... one after another; columns past the row's end count as zeros. Chains are added as Simd::sum_each
// adds lanes, blocks in order. Here a vector holds the chains of one output; in a strip it holds one chain of many
// outputs.
#pragma once

#include "op/linear.h"
#include "op/simd/decode.h"
#include "op/simd/unrolled.h"

namespace ridge {
namespace {

constexpr int64_t kBlockColumns = 1024;               // every group divides it; four rows of floats take half of L1
constexpr int64_t kBlockStride = kBlockColumns + 16;  // of decoded rows: a page apart they would share lines of L1
constexpr int kFewTokens = 4, kMostFew = 2 * Simd::kLanes;
/// Rows of a tile of so many tokens: one token alone wants more of them, so that its sums do not wait for each other.
constexpr int few_rows(int n_tokens) { return n_tokens == 1 ? 8 : Simd::kLanes / n_tokens; }

/// Columns in whole vectors.
inline int64_t whole_vectors(int64_t n) { return (n + Simd::kLanes - 1) / Simd::kLanes * Simd::kLanes; }

/// x with rows of whole vectors, zeros behind the last column: itself, or a copy in `buffer`.
inline View2<const float> whole_rows(AlignedBuffer& buffer, View2<const float> x) {
  const int64_t n = whole_vectors(x.cols);
  if (n == x.cols) return x;
  const View2<float> padded(buffer.as<float>(), x.rows, n);
  for (int64_t t = 0; t < x.rows; ++t) std::fill(std::copy_n(&x(t, 0), x.cols, &padded(t, 0)), &padded(t, 0) + n, 0.0f);
  return padded;
}

inline const std::byte* row_at(const Linear& w, int64_t row, int64_t column) {
  return w.rows + w.format->row_bytes(row * w.n_in + column);
}

/// Decodes the block of a row that starts at `column`, zeros behind the last one.
inline void decode_block_of(const Linear& w, RowDecoder decode, int64_t row, int64_t column, float* out) {
  const int64_t n = std::min(kBlockColumns, w.n_in - column);
  decode(row_at(w, row, column), n, out);
  std::fill(out + n, out + whole_vectors(n), 0.0f);
}

/// <row r, x[t]> over n columns in lane t * few_rows(kTile) + r, for kTokens <= kTile tokens.
template <class Load, int kTile, int kTokens>
inline Simd::F few_dots(const std::byte* const* rows, const float* x, int64_t x_stride, int64_t n) {
  constexpr int kRows = few_rows(kTile);
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

/// Outputs [first, first + n_rows) of up to kMostFew tokens, kTile at a time; n_rows is at most few_rows(kTile). Rows
/// are decoded into `decoded` [few_rows(kTile), kBlockStride], or read where they lie when `decode` is null.
template <class Load, int kTile>
void few_outputs(const Linear& w, RowDecoder decode, float* decoded, int64_t first, int64_t n_rows,
                 View2<const float> x, View2<float> y) {
  constexpr int kRows = few_rows(kTile);
  const int64_t block_bytes = w.format->row_bytes(kBlockColumns);
  float total[kMostFew / kTile][Simd::kLanes] = {};
  for (int64_t column = 0; column < w.n_in; column += kBlockColumns) {
    const std::byte* rows[kRows];
    for (int r = 0; r < kRows; ++r) {  // past the last row it is read again
      const int64_t row = first + std::min<int64_t>(r, n_rows - 1);
      rows[r] = row_at(w, row, column);
      if (!decode) continue;
      for (int64_t line = 0; line < block_bytes; line += 64) __builtin_prefetch(rows[r] + block_bytes + line);
      float* const out = decoded + r * kBlockStride;
      decode_block_of(w, decode, row, column, out);
      rows[r] = reinterpret_cast<const std::byte*>(out);
    }
    for (int64_t t = 0; t < y.rows; t += kTile) {
      const auto run = [&]<int kTokens>() {
        const Simd::F dots =
            few_dots<Load, kTile, kTokens>(rows, &x(t, column), x.stride, std::min(kBlockColumns, x.cols - column));
        float* const sums = total[t / kTile];
        Simd::store(sums, Simd::add(Simd::load(sums), dots));
      };
      switch (std::min<int64_t>(kTile, y.rows - t)) {
        case 1: run.template operator()<1>(); break;
        case 2: run.template operator()<std::min(kTile, 2)>(); break;
        case 3: run.template operator()<std::min(kTile, 3)>(); break;
        default: run.template operator()<kTile>();
      }
    }
  }
  for (int64_t t = 0; t < y.rows; ++t)
    for (int64_t r = 0; r < n_rows; ++r) y(t, first + r) = total[t / kTile][t % kTile * kRows + r];
}

/// Up to kMostFew tokens, kTile at a time.
template <int kTile>
void run_few(CpuContext& context, const Linear& w, View2<const float> x_in, View2<float> y) {
  constexpr int kRows = few_rows(kTile);
  const View2<const float> x = whole_rows(context.scratch[1], x_in);
  // About 128 KiB of weights a task: enough to amortise the hand-out, small enough to balance.
  const int64_t rows_per_task = std::max<int64_t>(1, 131072 / w.format->row_bytes(w.n_in) / kRows) * kRows;
  const bool in_place = w.format->group == 1 && x.cols == w.n_in;
  const RowDecoder decode = in_place ? nullptr : row_decoder(*w.format);
  float* const buffers = context.scratch[0].as<float>();
  const auto outputs = in_place && w.format->name == F16::kName    ? few_outputs<LoadF16, kTile>
                       : in_place && w.format->name == BF16::kName ? few_outputs<LoadBF16, kTile>
                                                                   : few_outputs<LoadF32, kTile>;
  context.pool.for_each((w.n_out + rows_per_task - 1) / rows_per_task, [&](int64_t task, int thread) {
    const int64_t last = std::min(w.n_out, (task + 1) * rows_per_task);
    for (int64_t first = task * rows_per_task; first < last; first += kRows)
      outputs(w, decode, buffers + thread * kRows * kBlockStride, first, std::min<int64_t>(kRows, last - first), x, y);
  });
}

}  // namespace
}  // namespace ridge
