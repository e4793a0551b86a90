// Products in float of many tokens: 48 (AVX2: 24) weight rows at a time are decoded and turned into a strip in cache,
// then register tiles of 8 x 48 (4 x 24) outputs run over all tokens. Decoding and turning are paid once per strip.
//
// A vector of sums holds one chain (op/gemv/rows_simd.h) of kLanes outputs. Strips and activations are stored chain after
// chain, so a chain reads both in order.
#pragma once

#include "op/gemv/rows_simd.h"

namespace ridge {
namespace {

constexpr int kStripVectors = 3;
constexpr int kStripRows = kStripVectors * Simd::kLanes;
constexpr int64_t kSteps = kBlockColumns / Simd::kLanes;  // of a chain in a block

/// Columns of a block as chains: [kLanes vectors of columns] to lane i of out[i * stride .. ].
/// y[t][0..kStripRows) (+)= x[t] times a strip over one block, for kTokens tokens. x is [t][chain][step].
template <int kTokens>
inline void strip_tile(const float* strip, int64_t n_steps, const float* x, int64_t x_stride, float* y, bool add) {
  // Chains are added two by two, the pairs two by two, ...: done[i] holds a sum of 2^i chains that waits for its partner.
  constexpr int kLevels = std::bit_width(unsigned(Simd::kLanes));
  Simd::F done[kLevels][kTokens][kStripVectors];
  for (int place = 0; place < Simd::kLanes; ++place) {
    const int chain = Simd::sum_order(place);
    const float* weights = strip + chain * kSteps * kStripRows;
    const float* values = x + chain * kSteps;
    Simd::F sum[kTokens][kStripVectors];
    for (int t = 0; t < kTokens; ++t)
      for (int v = 0; v < kStripVectors; ++v) sum[t][v] = Simd::zero();
    for (int64_t k = 0; k < n_steps; ++k) {
      Simd::F w[kStripVectors];
      for (int v = 0; v < kStripVectors; ++v) w[v] = Simd::load(weights + k * kStripRows + v * Simd::kLanes);
      for (int t = 0; t < kTokens; ++t) {
        const Simd::F a = Simd::set1(values[t * x_stride + k]);
        for (int v = 0; v < kStripVectors; ++v) sum[t][v] = Simd::fma(a, w[v], sum[t][v]);
      }
    }
    int level = 0;
    for (; place >> level & 1; ++level)
      for (int t = 0; t < kTokens; ++t)
        for (int v = 0; v < kStripVectors; ++v) sum[t][v] = Simd::add(done[level][t][v], sum[t][v]);
    for (int t = 0; t < kTokens; ++t)
      for (int v = 0; v < kStripVectors; ++v) done[level][t][v] = sum[t][v];
  }
  for (int t = 0; t < kTokens; ++t)
    for (int v = 0; v < kStripVectors; ++v) {
      float* const out = y + t * kStripRows + v * Simd::kLanes;
      Simd::store(out, Simd::add(add ? Simd::load(out) : Simd::zero(), done[kLevels - 1][t][v]));
    }
}

/// Turns kLanes rows of a block, so that lane c of row r at step s goes to out[(c * kSteps + s) * step_stride + r]. Rows
/// and columns that are missing are zeros.
inline void turn_rows(const float* rows, int64_t row_stride, int64_t n_rows, int64_t n_columns, float* out) {
  for (int64_t k = 0; k < n_columns; k += Simd::kLanes) {
    Simd::F block[Simd::kLanes];
    for (int r = 0; r < Simd::kLanes; ++r) block[r] = r < n_rows ? Simd::load(rows + r * row_stride + k) : Simd::zero();
    Simd::transpose(block);
    for (int c = 0; c < Simd::kLanes; ++c)
      Simd::store(out + (c * kSteps + k / Simd::kLanes) * kStripRows, block[c]);
  }
}

/// A token's block as chains: out[c * kSteps + s] = x[s * kLanes + c].
inline void turn_token(const float* x, int64_t n_columns, float* out) {
  constexpr int kLanes = Simd::kLanes;
  for (int64_t k = 0; k < n_columns; k += kLanes * kLanes) {
    Simd::F block[kLanes];
    for (int s = 0; s < kLanes; ++s) {
      const int64_t at = k + s * kLanes;
      block[s] = at + kLanes <= n_columns ? Simd::load(x + at)
                 : at < n_columns         ? load_part<LoadF32>(reinterpret_cast<const std::byte*>(x), at, n_columns)
                                          : Simd::zero();
    }
    Simd::transpose(block);
    for (int c = 0; c < kLanes; ++c) Simd::store(out + c * kSteps + k / kLanes, block[c]);
  }
}

void run_strips(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  const int64_t n_strips = (w.n_out + kStripRows - 1) / kStripRows, n_tokens = y.rows;
  const int64_t n_blocks = (w.n_in + kBlockColumns - 1) / kBlockColumns;
  const int n_threads = context.pool.size();
  const RowDecoder decode = row_decoder(*w.format);
  // Of a thread: a strip, rows on their way into it, results.
  const int64_t strip_floats = kStripRows * kBlockColumns, rows_floats = Simd::kLanes * kBlockColumns;
  float* buffers = context.scratch[0].ensure<float>(n_threads * (strip_floats + rows_floats));
  float* turned = context.scratch[1].ensure<float>(n_tokens * n_blocks * kBlockColumns);
  float* sums = context.scratch[2].ensure<float>(n_threads * n_tokens * kStripRows);
  const int64_t turned_stride = n_blocks * kBlockColumns;
  context.pool.for_each(n_tokens, [&](int64_t t, int) {
    for (int64_t column = 0; column < w.n_in; column += kBlockColumns)
      turn_token(&x(t, column), std::min(kBlockColumns, w.n_in - column), turned + t * turned_stride + column);
  });
  context.pool.for_each(n_strips, [&](int64_t strip_index, int thread) {
    float* const strip = buffers + thread * (strip_floats + rows_floats);
    float* const decoded = strip + strip_floats;
    float* const sum = sums + thread * n_tokens * kStripRows;
    const int64_t first_row = strip_index * kStripRows, n_rows = std::min<int64_t>(kStripRows, w.n_out - first_row);
    for (int64_t column = 0; column < w.n_in; column += kBlockColumns) {
      const int64_t n_columns = std::min(kBlockColumns, w.n_in - column);
      const int64_t n_steps = (n_columns + Simd::kLanes - 1) / Simd::kLanes;
      for (int64_t first = 0; first < kStripRows; first += Simd::kLanes) {
        const int64_t count = std::clamp<int64_t>(n_rows - first, 0, Simd::kLanes);
        for (int64_t r = 0; r < count; ++r) {
          float* const row = decoded + r * kBlockColumns;
          decode(w.rows + w.format->row_bytes((first_row + first + r) * w.n_in + column), n_columns, row);
          std::fill(row + n_columns, row + n_steps * Simd::kLanes, 0.0f);
        }
        turn_rows(decoded, kBlockColumns, count, n_columns, strip + first);
      }
      int64_t t = 0;
      const auto tiles_of = [&]<int kTokens>() {
        for (; t + kTokens <= n_tokens; t += kTokens)
          strip_tile<kTokens>(strip, n_steps, turned + t * turned_stride + column, turned_stride, sum + t * kStripRows,
                              column > 0);
      };
      tiles_of.template operator()<Simd::kGemmRows>();
      tiles_of.template operator()<Simd::kGemmRows / 2>();
      tiles_of.template operator()<1>();
    }
    for (int64_t t = 0; t < n_tokens; ++t)
      __builtin_memcpy(&y(t, first_row), sum + t * kStripRows, sizeof(float) * size_t(n_rows));
  });
}

}  // namespace
}  // namespace ridge
