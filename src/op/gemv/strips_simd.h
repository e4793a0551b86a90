// GEMMs in float of many tokens: 48 (AVX2: 24) weight rows at a time are decoded and turned into a strip in cache,
// then register tiles of 8 x 48 (4 x 24) outputs run over all tokens. Decoding and turning are paid once per strip.
//
// A vector of sums holds one chain (op/gemv/rows_simd.h) of kLanes outputs. Strips and activations are stored chain
// after chain, so that a chain reads both in order.
#pragma once

#include <bit>

#include "op/gemv/rows_simd.h"

namespace ridge {
namespace {

constexpr int kStripVectors = 3;
constexpr int kStripRows = kStripVectors * Simd::kLanes;
constexpr int64_t kSteps = kBlockColumns / Simd::kLanes;    // of a chain in a block
constexpr int64_t kChainFloats = kSteps * kStripRows + 16;  // of a strip; see kBlockStride

/// y[t][0..kStripRows) (+)= x[t] times a strip [chain][step][row] over one block, for kTokens tokens; x is
/// [t][chain][step].
template <int kTokens>
inline void strip_tile(const float* strip, int64_t n_steps, const float* x, int64_t x_stride, float* y, bool add) {
  // done[i] is a sum of 2^i chains that waits for its partner.
  constexpr int kLevels = std::bit_width(unsigned(Simd::kLanes));
  Simd::F done[kLevels][kTokens][kStripVectors];
  for (int place = 0; place < Simd::kLanes; ++place) {
    const float* const weights = strip + Simd::sum_order(place) * kChainFloats;
    const float* const values = x + Simd::sum_order(place) * kSteps;
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

/// Up to kLanes rows of a block, row r of step s of chain c to out[c * kChainFloats + s * kStripRows + r]; missing rows
/// are zeros.
inline void turn_rows(const float* rows, int64_t n_rows, int64_t n_steps, float* out) {
  for (int64_t step = 0; step < n_steps; ++step) {
    Simd::F block[Simd::kLanes];
    for (int r = 0; r < Simd::kLanes; ++r)
      block[r] = r < n_rows ? Simd::load(rows + r * kBlockStride + step * Simd::kLanes) : Simd::zero();
    Simd::transpose(block);
    for (int c = 0; c < Simd::kLanes; ++c) Simd::store(out + c * kChainFloats + step * kStripRows, block[c]);
  }
}

/// A token's block as chains: out[c * kSteps + s] = x[s * kLanes + c].
inline void turn_token(const float* x, int64_t n_steps, float* out) {
  for (int64_t step = 0; step < n_steps; step += Simd::kLanes) {
    Simd::F block[Simd::kLanes];
    for (int s = 0; s < Simd::kLanes; ++s)
      block[s] = step + s < n_steps ? Simd::load(x + (step + s) * Simd::kLanes) : Simd::zero();
    Simd::transpose(block);
    for (int c = 0; c < Simd::kLanes; ++c) Simd::store(out + c * kSteps + step, block[c]);
  }
}

// A thread's memory: a strip, and rows on their way into it.
constexpr int64_t kStripFloats = Simd::kLanes * kChainFloats;
constexpr int64_t kStripRoomFloats = kStripFloats + Simd::kLanes * kBlockStride;

inline int64_t whole_blocks(int64_t n) { return (n + kBlockColumns - 1) / kBlockColumns * kBlockColumns; }

void run_strips(CpuContext& context, const Linear& w, View2<const float> x_in, View2<float> y) {
  const int64_t n_strips = (w.n_out + kStripRows - 1) / kStripRows, n_tokens = y.rows;
  const int64_t n_columns = whole_blocks(w.n_in);
  const auto n_steps = [&](int64_t column) {
    return whole_vectors(std::min(kBlockColumns, w.n_in - column)) / Simd::kLanes;
  };
  float* buffers = context.scratch[0].as<float>();
  const View2<const float> x = whole_rows(context.scratch[2], x_in);
  const View2<float> turned(context.scratch[1].as<float>(), n_tokens, n_columns);
  context.pool.for_each(n_tokens, [&](int64_t t, int) {
    for (int64_t column = 0; column < w.n_in; column += kBlockColumns)
      turn_token(&x(t, column), n_steps(column), &turned(t, column));
  });
  // The padded x has been turned and is needed no more.
  float* sums = context.scratch[2].as<float>();
  const RowDecoder decode = row_decoder(*w.format);
  context.pool.for_each(n_strips, [&](int64_t strip_index, int thread) {
    float* const strip = buffers + thread * kStripRoomFloats;
    float* const decoded = strip + kStripFloats;
    float* const sum = sums + thread * n_tokens * kStripRows;
    const int64_t first_row = strip_index * kStripRows, n_rows = std::min<int64_t>(kStripRows, w.n_out - first_row);
    for (int64_t column = 0; column < w.n_in; column += kBlockColumns) {
      for (int64_t r = 0; r < kStripRows; r += Simd::kLanes) {
        const int64_t count = std::min<int64_t>(Simd::kLanes, n_rows - r);
        for (int64_t i = 0; i < count; ++i)
          decode_block_of(w, decode, first_row + r + i, column, decoded + i * kBlockStride);
        turn_rows(decoded, count, n_steps(column), strip + r);
      }
      int64_t t = 0;
      const auto tiles_of = [&]<int kTokens>() {
        for (; t + kTokens <= n_tokens; t += kTokens)
          strip_tile<kTokens>(strip, n_steps(column), &turned(t, column), n_columns, sum + t * kStripRows, column > 0);
      };
      tiles_of.template operator()<Simd::kGemmRows>();
      tiles_of.template operator()<4>();
      tiles_of.template operator()<1>();
    }
    for (int64_t t = 0; t < n_tokens; ++t)
      __builtin_memcpy(&y(t, first_row), sum + t * kStripRows, sizeof(float) * size_t(n_rows));
  });
}

/// Few tokens: decoded rows of each thread; x in whole vectors. Strips: memory of the threads; turned activations; x in
/// whole vectors, then sums of each thread.
inline ScratchBytes rows_scratch(const Linear& w, int64_t n_tokens, int n_threads) {
  const int64_t whole = whole_vectors(w.n_in), padded = whole == w.n_in ? 0 : 4 * n_tokens * whole;
  if (n_tokens <= kMostFew) return {4 * n_threads * few_rows(n_tokens == 1 ? 1 : kFewTokens) * kBlockStride, padded};
  return {4 * n_threads * kStripRoomFloats, 4 * n_tokens * whole_blocks(w.n_in),
          std::max(padded, 4 * n_tokens * n_threads * kStripRows)};
}

void run_rows(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  context.make_scratch(rows_scratch(w, y.rows, context.pool.size()));
  if (y.rows == 1) run_few<1>(context, w, x, y);
  else if (y.rows <= kMostFew) run_few<kFewTokens>(context, w, x, y);
  else run_strips(context, w, x, y);
}

}  // namespace
}  // namespace ridge
