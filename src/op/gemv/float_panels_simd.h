// Matmuls of panels of floats (FloatPanels, op/gemv/panels.h) with activations as they are, 16 rows at a time.
// Included once per ISA after its Simd struct.
//
// A few tokens: codes become floats in registers. More tokens: 128 columns of some vectors of rows become floats in
// cache, once for all tokens. Both ways have one order of sums: of every 32 columns one chain of fused multiply-adds in
// order, then one with the scale. So a token's results are the same bits alone and among others, and on every ISA.
#pragma once

#include <algorithm>
#include <vector>

#include "op/gemv/panels.h"
#include "op/simd/unrolled.h"

namespace ridge {
namespace {

struct FloatPanelTile {
  static constexpr bool kWide = Simd::kLanes == 16;        ///< twice the registers too
  static constexpr int kRowVectors = Simd::kPanelVectors;  ///< of a panel
  static constexpr int kVectors = kWide ? 3 : 2, kPanels = kVectors / kRowVectors, kRows = kVectors * Simd::kLanes;
  static constexpr int kTokens = kWide ? 4 : 6;
  static constexpr int64_t kMany = 32 * kTokens;  ///< tokens that pass over a chunk together
};

/// Tokens [first, first + kTokens) of x times one panel.
template <int kTokens>
[[gnu::noinline]] void few_of_panel(const std::byte* panel, View2<const float> x, int64_t first,
                                    float (*y)[kPanelRows]) {
  constexpr int kRowVectors = FloatPanelTile::kRowVectors, kPrefetch = 4096;
  Simd::F total[kTokens][kRowVectors], dot[kTokens][kRowVectors];
  const auto each = [](const auto& body) {
    unrolled<kTokens>([&](auto t) { unrolled<kRowVectors>([&](auto v) { body(t, v); }); });
  };
  each([&](auto t, auto v) { total[t][v] = Simd::zero(); });
  for (int64_t column = 0; column < x.cols; column += kPanelGroup, panel += FloatPanels::kUnitBytes) {
    for (int line = 0; line < FloatPanels::kUnitBytes; line += 64) __builtin_prefetch(panel + kPrefetch + line);
    each([&](auto t, auto v) { dot[t][v] = Simd::zero(); });
    const float* const values = &x(first, column);
#pragma GCC unroll 8
    for (int k = 0; k < kPanelGroup; ++k)
      unrolled<kRowVectors>([&](auto v) {
        const Simd::F w = Simd::load_e4m3(panel + FloatPanels::kHeadBytes + kPanelRows * k + v * Simd::kLanes);
        unrolled<kTokens>([&](auto t) { dot[t][v] = Simd::fma(w, Simd::set1(values[t * x.stride + k]), dot[t][v]); });
      });
    const auto* const scales = reinterpret_cast<const float*>(panel);
    each([&](auto t, auto v) {
      total[t][v] = Simd::fma(dot[t][v], Simd::load(scales + v * Simd::kLanes), total[t][v]);
    });
  }
  each([&](auto t, auto v) { Simd::store(&y[t][v * Simd::kLanes], total[t][v]); });
}

/// A chunk of kVectors vectors of rows as floats.
struct FloatChunk {
  alignas(64) float weights[FloatPanels::kColumns][FloatPanelTile::kRows];
  alignas(64) float scales[FloatPanels::kColumns / kPanelGroup][FloatPanelTile::kRows];
  int64_t n_columns;
};

/// Activations in chunks, a chunk's tokens one behind another: rows of x can be pages apart.
struct FloatTokens {
  static constexpr int64_t kStride = FloatPanels::kColumns + FloatPanels::kSpread;
  const float* values;
  int64_t n_tokens;

  const float* at(int64_t column, int64_t token) const {
    return values + (column / FloatPanels::kColumns * n_tokens + token) * kStride;
  }
};

inline FloatTokens take_tokens(CpuContext& context, View2<const float> x) {
  context.make_scratch(float_tokens_bytes(x.rows, x.cols));
  float* const values = context.scratch[0].as<float>();
  const FloatTokens tokens{values, x.rows};
  context.pool.for_each(x.rows, [&](int64_t t, int) {
    for (int64_t column = 0; column < x.cols; column += FloatPanels::kColumns)
      std::copy_n(&x(t, column), std::min<int64_t>(FloatPanels::kColumns, x.cols - column),
                  values + (tokens.at(column, t) - values));
  });
  return tokens;
}

/// sums[t] += the chunk times kTokens tokens, whose columns of the chunk begin at x.
template <int kTokens>
[[gnu::noinline]] void float_tile(const FloatChunk& w, const float* x, float (*sums)[FloatPanelTile::kRows]) {
  constexpr int kVectors = FloatPanelTile::kVectors;
  const auto each = [](const auto& body) {
    unrolled<kTokens>([&](auto t) { unrolled<kVectors>([&](auto v) { body(t, v); }); });
  };
  Simd::F total[kTokens][kVectors];
  each([&](auto t, auto v) { total[t][v] = Simd::load(sums[t] + v * Simd::kLanes); });
  for (int64_t first = 0; first < w.n_columns; first += kPanelGroup, x += kPanelGroup) {
    Simd::F dot[kTokens][kVectors];
    each([&](auto t, auto v) { dot[t][v] = Simd::zero(); });
#pragma GCC unroll 4
    for (int64_t k = 0; k < kPanelGroup; ++k) {
      Simd::F at[kVectors];
      unrolled<kVectors>([&](auto v) { at[v] = Simd::load(w.weights[first + k] + v * Simd::kLanes); });
      unrolled<kTokens>([&](auto t) {
        const Simd::F value = Simd::set1(x[t * FloatTokens::kStride + k]);
        unrolled<kVectors>([&](auto v) { dot[t][v] = Simd::fma(at[v], value, dot[t][v]); });
      });
    }
    each([&](auto t, auto v) {
      total[t][v] = Simd::fma(dot[t][v], Simd::load(w.scales[first / kPanelGroup] + v * Simd::kLanes), total[t][v]);
    });
  }
  each([&](auto t, auto v) { Simd::store(sums[t] + v * Simd::kLanes, total[t][v]); });
}

/// Vector `to` of a chunk: vector v of the panel's rows, from the unit of its first column on.
inline void decode_floats(const std::byte* units, int v, int to, FloatChunk& out) {
  for (int64_t column = 0; column < out.n_columns; column += kPanelGroup, units += FloatPanels::kUnitBytes) {
    for (int k = 0; k < kPanelGroup; ++k)
      Simd::store(out.weights[column + k] + to * Simd::kLanes,
                  Simd::load_e4m3(units + FloatPanels::kHeadBytes + kPanelRows * k + v * Simd::kLanes));
    Simd::store(out.scales[column / kPanelGroup] + to * Simd::kLanes,
                Simd::load(reinterpret_cast<const float*>(units) + v * Simd::kLanes));
  }
}

/// Tokens of `out` times kPanels panels from first_panel on.
inline void many_of_panels(const LinearOutput& out, const FloatTokens& x, int64_t first_panel) {
  using T = FloatPanelTile;
  const Linear& w = *out.w;
  const int64_t n_panels = (w.n_out + kPanelRows - 1) / kPanelRows, first_row = first_panel * kPanelRows;
  const int64_t n_rows = std::min<int64_t>(T::kRows, w.n_out - first_row);
  FloatChunk chunk;
  alignas(64) float sums[T::kMany][T::kRows];
  for (int64_t first = 0; first < out.y.rows; first += T::kMany) {
    const int64_t n_tokens = std::min(T::kMany, out.y.rows - first);
    std::fill_n(&sums[0][0], T::kMany * T::kRows, 0.0f);
    for (int64_t column = 0; column < w.n_in; column += FloatPanels::kColumns) {
      chunk.n_columns = std::min<int64_t>(FloatPanels::kColumns, w.n_in - column);
      for (int v = 0; v < T::kVectors; ++v) {  // past the last panel it is read again
        const int64_t panel = std::min(n_panels - 1, first_panel + v / T::kRowVectors);
        const int64_t unit = panel * (w.n_in / kPanelGroup) + column / kPanelGroup;
        decode_floats(w.panels + unit * FloatPanels::kUnitBytes, v % T::kRowVectors, v, chunk);
      }
      const float* const tokens = x.at(column, out.first + first);
      int64_t t = 0;
      for (; t + T::kTokens <= n_tokens; t += T::kTokens)
        float_tile<T::kTokens>(chunk, tokens + t * FloatTokens::kStride, sums + t);
      for (; t < n_tokens; ++t) float_tile<1>(chunk, tokens + t * FloatTokens::kStride, sums + t);
    }
    for (int64_t t = 0; t < n_tokens; ++t)
      __builtin_memcpy(&out.y(first + t, first_row), sums[t], sizeof(float) * size_t(n_rows));
  }
}

/// Tokens of `out`, at most FloatPanels::kFew, times one panel.
inline void few_of_panels(const LinearOutput& out, View2<const float> x, int64_t panel) {
  const std::byte* const at = out.w->panels + panel * (out.w->n_in / kPanelGroup) * FloatPanels::kUnitBytes;
  const size_t bytes = sizeof(float) * size_t(std::min<int64_t>(kPanelRows, out.w->n_out - panel * kPanelRows));
  int64_t token = 0;
  const auto tokens_of = [&]<int kTokens>() {
    for (; token + kTokens <= out.y.rows; token += kTokens) {
      float sums[kTokens][kPanelRows];
      few_of_panel<kTokens>(at, x, out.first + token, sums);
      for (int t = 0; t < kTokens; ++t) __builtin_memcpy(&out.y(token + t, panel * kPanelRows), sums[t], bytes);
    }
  };
  if constexpr (FloatPanelTile::kWide) tokens_of.template operator()<8>();
  tokens_of.template operator()<4>();
  tokens_of.template operator()<2>();
  tokens_of.template operator()<1>();
}

void run_float_panels(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  using T = FloatPanelTile;
  const FloatTokens tokens = x.rows > FloatPanels::kFew ? take_tokens(context, x) : FloatTokens{};
  constexpr int64_t kTaskBytes = 65536;  // of a few tokens' weights, as in panel_simd.h
  struct Matrix {
    const LinearOutput* out;
    int64_t n_panels, per_task, n_tasks;
  };
  std::vector<Matrix> matrices;
  int64_t n_tasks = 0;
  for (const LinearOutput& one : all) {
    const int64_t n_panels = (one.w->n_out + kPanelRows - 1) / kPanelRows;
    const int64_t share = (n_panels + context.pool.size() - 1) / context.pool.size();
    const int64_t bytes = one.w->n_in / kPanelGroup * FloatPanels::kUnitBytes;
    const int64_t per_task =
        one.y.rows > FloatPanels::kFew ? T::kPanels : std::max<int64_t>(1, std::min(share, kTaskBytes / bytes));
    matrices.push_back({&one, n_panels, per_task, (n_panels + per_task - 1) / per_task});
    n_tasks += matrices.back().n_tasks;
  }
  context.pool.for_each(n_tasks, [&](int64_t task, int) {
    auto own = matrices.begin();
    for (; task >= own->n_tasks; ++own) task -= own->n_tasks;
    const int64_t first = task * own->per_task, last = std::min(own->n_panels, first + own->per_task);
    if (own->out->y.rows > FloatPanels::kFew) return many_of_panels(*own->out, tokens, first);
    for (int64_t panel = first; panel < last; ++panel) few_of_panels(*own->out, x, panel);
  });
}

}  // namespace
}  // namespace ridge
