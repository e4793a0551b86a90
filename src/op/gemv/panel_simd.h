// Panel kernels for q8_0, q4_0 and int4_g128: int8 activations, integer dot products, 16 rows at a time. Included once
// per ISA after its Simd struct; serves gemv (one token) and gemm (register tiles of up to 8 tokens).
#pragma once

#include <type_traits>

#include "format/int4_g128.h"
#include "format/q4_0.h"
#include "format/q8_0.h"
#include "op/gemv/panels.h"

namespace ridge {
namespace {

/// Quantises a token's row; equals quantize_group_ref bit for bit (same operations in the same order).
inline void quantize_token(const float* x, int64_t n_in, int8_t* q, float* scale, int32_t* sum) {
  for (int64_t group = 0; group < n_in / kPanelGroup; ++group) {
    const float* in = x + group * kPanelGroup;
    int8_t* out = q + group * kPanelGroup;
    Simd::F top = Simd::zero();
    for (int i = 0; i < kPanelGroup; i += Simd::kLanes) top = Simd::max(top, Simd::abs(Simd::load(in + i)));
    const float largest = Simd::top(top);
    const Simd::F inverse = Simd::set1(group_inverse(largest));
    Simd::F total = Simd::zero();
    for (int i = 0; i < kPanelGroup; i += Simd::kLanes) {
      const Simd::F rounded = Simd::round(Simd::mul(Simd::load(in + i), inverse));
      Simd::store_i8(out + i, rounded);
      total = Simd::add(total, rounded);  // integers far below 2^24: exact in any order
    }
    // A NaN or infinity among the activations has made the total NaN, and a NaN scale carries it into every output.
    const float exact = Simd::sum(total);
    const bool finite = exact == exact;
    sum[group] = finite ? int32_t(exact) : 0;
    scale[group] = finite ? largest / 127.0f : __builtin_nanf("");
  }
}

inline QuantizedTokens quantize_tokens(CpuContext& context, View2<const float> x) {
  const int64_t n_groups = x.cols / kPanelGroup;
  auto* q = context.scratch[0].ensure<int8_t>(x.rows * x.cols);
  auto* scale = context.scratch[1].ensure<float>(x.rows * n_groups);
  auto* sum = context.scratch[2].ensure<int32_t>(x.rows * n_groups);
  const auto one = [&](int64_t token, int) {
    quantize_token(&x(token, 0), x.cols, q + token * x.cols, scale + token * n_groups, sum + token * n_groups);
  };
  if (x.rows == 1) one(0, 0);
  else context.pool.for_each(x.rows, one);
  return {q, scale, sum, x.cols};
}

inline Simd::I broadcast4(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return Simd::iset1(four);
}

/// How far ahead of a token's dot products the weights are asked for. The hardware prefetcher alone stops at page ends
/// and leaves a fifth of the read bandwidth unused; 1 to 4 KiB ahead all close the gap.
constexpr int kPrefetchBytes = 2048;

/// One panel times `kTokens` tokens: y[t][r] = sum over groups of scale_w * scale_x * (dot - zero * sum_x). Fewer than
/// a whole tile of tokens come first or alone, so their weights come from memory.
template <class F, int kTokens>
inline void panel_dot(const std::byte* panel, int64_t n_groups, const QuantizedTokens& x, int64_t first_token,
                      float (*y)[kPanelRows]) {
  constexpr int kVectors = Simd::kPanelVectors, kVectorBytes = 64 / kVectors;
  using Unit = PanelUnit<F>;
  constexpr bool kNibbles = !std::is_same_v<F, Q8_0>;
  constexpr int32_t kZero = kNibbles ? 8 : 128;
  for (int v = 0; v < kVectors; ++v) {
    Simd::F total[kTokens];
    for (int t = 0; t < kTokens; ++t) total[t] = Simd::zero();
    for (int64_t group = 0; group < n_groups; ++group) {
      const std::byte* unit = panel + group / Unit::kGroups * Unit::kBytes;
      const std::byte* codes = unit + 2 * kPanelRows + group % Unit::kGroups * Unit::kGroupBytes + v * kVectorBytes;
      if constexpr (kTokens < Simd::kGemmRows)
        for (int line = 0; line < Unit::kBytes / Unit::kGroups; line += 64)
          __builtin_prefetch(codes + kPrefetchBytes + line);
      const int8_t* q[kTokens];
      Simd::I dot[kTokens];
      for (int t = 0; t < kTokens; ++t) {
        q[t] = x.q + (first_token + t) * x.n_in + group * kPanelGroup;
        dot[t] = Simd::iset1(-kZero * x.sum[(first_token + t) * n_groups + group]);
      }
      if constexpr (kNibbles) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
          const Simd::I both = Simd::iload(codes + 64 * k);
          const Simd::I low = Simd::low_nibbles(both), high = Simd::high_nibbles(both);
          for (int t = 0; t < kTokens; ++t) {
            dot[t] = Simd::dot4(dot[t], low, broadcast4(q[t] + 4 * k));
            dot[t] = Simd::dot4(dot[t], high, broadcast4(q[t] + 16 + 4 * k));
          }
        }
      } else {
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) {
          const Simd::I weights = Simd::iload(codes + 64 * k);
          for (int t = 0; t < kTokens; ++t) dot[t] = Simd::dot4(dot[t], weights, broadcast4(q[t] + 4 * k));
        }
      }
      const Simd::F scale = Simd::load_f16(unit + v * 2 * Simd::kLanes);
      for (int t = 0; t < kTokens; ++t) {
        const Simd::F both = Simd::mul(scale, Simd::set1(x.scale[(first_token + t) * n_groups + group]));
        total[t] = Simd::fma(Simd::to_float(dot[t]), both, total[t]);
      }
    }
    for (int t = 0; t < kTokens; ++t) Simd::store(&y[t][v * Simd::kLanes], total[t]);
  }
}

/// Not inlined: side by side in one function, the loops of several tiles run out of registers.
template <class F, int kTokens>
[[gnu::noinline]] void panel_tile(const std::byte* panel, int64_t n_groups, const QuantizedTokens& x, int64_t token,
                                  int64_t row, View2<float> y) {
  float sums[kTokens][kPanelRows];
  panel_dot<F, kTokens>(panel, n_groups, x, token, sums);
  const size_t bytes = sizeof(float) * size_t(std::min<int64_t>(kPanelRows, y.cols - row));
  for (int t = 0; t < kTokens; ++t) __builtin_memcpy(&y(token + t, row), sums[t], bytes);
}

template <class F>
void run_panels(CpuContext& context, const Linear& w, View2<const float> x_in, View2<float> y) {
  const QuantizedTokens x = quantize_tokens(context, x_in);
  const int64_t n_groups = w.n_in / kPanelGroup, n_panels = (w.n_out + kPanelRows - 1) / kPanelRows;
  const int64_t panel_size = panel_bytes(*w.format, kPanelRows, w.n_in);
  // About 64 KiB of weights a task for a few tokens: enough to amortise the hand-out, small enough to balance.
  const int64_t panels_per_task = y.rows <= 2 * Simd::kGemmRows ? std::max<int64_t>(1, 65536 / panel_size) : 1;
  context.pool.for_each((n_panels + panels_per_task - 1) / panels_per_task, [&](int64_t task, int) {
    const int64_t last = std::min(n_panels, (task + 1) * panels_per_task);
    for (int64_t p = task * panels_per_task; p < last; ++p) {
      const std::byte* panel = w.panels + p * panel_size;
      int64_t token = 0;
      const auto tiles_of = [&]<int kTokens>() {
        for (; token + kTokens <= y.rows; token += kTokens)
          panel_tile<F, kTokens>(panel, n_groups, x, token, p * kPanelRows, y);
      };
      // Whole tiles leave memory to itself, which pays when a panel serves several.
      if (y.rows > Simd::kGemmRows) tiles_of.template operator()<Simd::kGemmRows>();
      tiles_of.template operator()<Simd::kGemmRows / 2>();
      tiles_of.template operator()<2>();
      tiles_of.template operator()<1>();
    }
  });
}

inline void run_panels_any(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  if (w.format->name == Q8_0::kName) run_panels<Q8_0>(context, w, x, y);
  else if (w.format->name == Q4_0::kName) run_panels<Q4_0>(context, w, x, y);
  else run_panels<Int4G128>(context, w, x, y);
}

}  // namespace
}  // namespace ridge
