// GEMM in float for every weight format. Up to kMostFew tokens: few_simd.h. More: 48 (AVX2: 24) weight rows at a time
// are decoded into a column-major strip in cache, then register tiles of 8 x 48 (4 x 24) outputs run over all tokens.
// Decoding is paid once per strip.
#pragma once

#include "op/gemm/few_simd.h"

namespace ridge {
namespace {

constexpr int kMostFew = 32;
constexpr int kStripVectors = 3;
constexpr int kStripRows = kStripVectors * Simd::kLanes;
constexpr int64_t kStripColumns = 512;  // strip of 48 x 512 floats = 96 KiB: stays in L2; every group divides 512

/// y[t][0..kStripRows) (+)= sum_k x[t][k] * strip[k][..] for kTokens tokens.
template <int kTokens>
inline void tile(const float* strip, int64_t n_columns, const float* x, int64_t x_stride, float* y, bool accumulate) {
  Simd::F sum[kTokens][kStripVectors];
  for (int t = 0; t < kTokens; ++t)
    for (int v = 0; v < kStripVectors; ++v)
      sum[t][v] = accumulate ? Simd::load(y + t * kStripRows + v * Simd::kLanes) : Simd::zero();
  for (int64_t k = 0; k < n_columns; ++k) {
    Simd::F w[kStripVectors];
    for (int v = 0; v < kStripVectors; ++v) w[v] = Simd::load(strip + k * kStripRows + v * Simd::kLanes);
    for (int t = 0; t < kTokens; ++t) {
      const Simd::F a = Simd::set1(x[t * x_stride + k]);
      for (int v = 0; v < kStripVectors; ++v) sum[t][v] = Simd::fma(a, w[v], sum[t][v]);
    }
  }
  for (int t = 0; t < kTokens; ++t)
    for (int v = 0; v < kStripVectors; ++v) Simd::store(y + t * kStripRows + v * Simd::kLanes, sum[t][v]);
}

/// Columns [column, column + n_columns) of kLanes weight rows, as columns of a strip; missing rows are zero.
inline void turn_rows(const Linear& w, RowDecoder decode, int64_t first_row, int64_t n_rows, int64_t column,
                      int64_t n_columns, float* decoded, float* strip) {
  for (int64_t r = 0; r < n_rows; ++r)
    decode(w.rows + (first_row + r) * w.format->row_bytes(w.n_in) + w.format->row_bytes(column), n_columns,
           decoded + r * kStripColumns);
  for (int64_t k = 0; k < n_columns; k += Simd::kLanes) {  // the strip has room behind the last column
    Simd::F block[Simd::kLanes];
    for (int r = 0; r < Simd::kLanes; ++r)
      block[r] = r < n_rows ? Simd::load(decoded + r * kStripColumns + k) : Simd::zero();
    Simd::transpose(block);
    for (int i = 0; i < Simd::kLanes; ++i) Simd::store(strip + (k + i) * kStripRows, block[i]);
  }
}

void run_tiles(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  if (y.rows <= kMostFew) return run_few(context, w, x, y);
  const int64_t n_strips = (w.n_out + kStripRows - 1) / kStripRows;
  const int n_threads = context.pool.size();
  const RowDecoder decode = row_decoder(*w.format);
  float* strips = context.scratch[0].ensure<float>(n_threads * kStripRows * kStripColumns);
  float* rows = context.scratch[1].ensure<float>(n_threads * Simd::kLanes * kStripColumns);
  float* sums = context.scratch[2].ensure<float>(n_threads * y.rows * kStripRows);
  context.pool.for_each(n_strips, [&](int64_t strip_index, int thread) {
    float* strip = strips + thread * kStripRows * kStripColumns;
    float* decoded = rows + thread * Simd::kLanes * kStripColumns;
    float* sum = sums + thread * y.rows * kStripRows;
    const int64_t first_row = strip_index * kStripRows, n_rows = std::min<int64_t>(kStripRows, w.n_out - first_row);
    for (int64_t column = 0; column < w.n_in; column += kStripColumns) {
      const int64_t n_columns = std::min(kStripColumns, w.n_in - column);
      for (int64_t r = 0; r < kStripRows; r += Simd::kLanes)
        turn_rows(w, decode, first_row + r, std::min<int64_t>(Simd::kLanes, n_rows - r), column, n_columns, decoded,
                  strip + r);
      int64_t t = 0;
      for (; t + Simd::kGemmRows <= y.rows; t += Simd::kGemmRows)
        tile<Simd::kGemmRows>(strip, n_columns, &x(t, column), x.stride, sum + t * kStripRows, column > 0);
      for (; t + 4 <= y.rows; t += 4)
        tile<4>(strip, n_columns, &x(t, column), x.stride, sum + t * kStripRows, column > 0);
      for (; t < y.rows; ++t) tile<1>(strip, n_columns, &x(t, column), x.stride, sum + t * kStripRows, column > 0);
    }
    for (int64_t t = 0; t < y.rows; ++t)
      __builtin_memcpy(&y(t, first_row), sum + t * kStripRows, sizeof(float) * size_t(n_rows));
  });
}

}  // namespace
}  // namespace ridge
