// Ternary kernels: int8 activations and 2-bit codes, 16 rows at a time, integer sums over whole rows. Included once per
// ISA after its Simd struct; serves gemv (one token) and gemm (register tiles of tokens).
//
// The codes are unpacked with one shift and one mask for every 64 products; in a tile of 8 tokens that is shared by
// all, and the dot products bound the kernel.
#pragma once

#include "op/gemv/ternary.h"
#include "op/kernels.h"

namespace ridge {
namespace {

/// Equals quantize_token_ref bit for bit where the token is finite (same operations in the same order).
inline void quantize_token(const float* x, int64_t n, int8_t* q, float& scale, int32_t& sum) {
  Simd::F largest = Simd::zero();
  for (int64_t i = 0; i < n; i += Simd::kLanes) largest = Simd::max(largest, Simd::abs(Simd::load(x + i)));
  const float top = token_top(Simd::top(largest));
  const Simd::F inverse = Simd::set1(127.0f / top);
  Simd::F total = Simd::zero();
  for (int64_t i = 0; i < n; i += Simd::kLanes) {
    const Simd::F rounded = Simd::round(Simd::mul(Simd::load(x + i), inverse));
    Simd::store_i8(q + i, rounded);
    total = Simd::add(total, rounded);  // a lane sums at most 2^20 / 8 integers of 127: exact
  }
  float lanes[Simd::kLanes];
  Simd::store(lanes, total);
  bool finite = true;  // a NaN or infinity among the activations has made its lane NaN
  sum = 0;
  for (const float lane : lanes) {
    finite = finite && lane == lane;
    sum += lane == lane ? int32_t(lane) : 0;
  }
  scale = finite ? top / 127.0f : __builtin_nanf("");
}

inline Int8Tokens quantize_tokens(CpuContext& context, const Linear& w, View2<const float> x) {
  context.make_scratch(ternary_scratch(w, x.rows, context.pool.size()));
  auto* q = context.scratch[0].as<int8_t>();
  auto* scale = context.scratch[1].as<float>();
  auto* sum = context.scratch[2].as<int32_t>();
  const auto one = [&](int64_t t, int) { quantize_token(&x(t, 0), x.cols, q + t * x.cols, scale[t], sum[t]); };
  if (x.rows == 1) one(0, 0);
  else context.pool.for_each(x.rows, one);
  return {q, scale, sum};
}

template <int k>
inline Simd::I quarter_dot(Simd::I sum, Simd::I codes, const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q + 4 * k, 4);
  return Simd::dot4_small(sum, codes, Simd::iset1(four));
}

/// y[token + t][row ..] for kTokens tokens and one panel.
template <int kTokens>
inline void ternary_tile(const std::byte* panel, const Linear& w, const Int8Tokens& x, int64_t token, int64_t row,
                         View2<float> y) {
  constexpr int kVectors = Simd::kPanelVectors, kVectorBytes = 64 / kVectors;
  constexpr int kSums = kTokens == 1 ? 4 : 1;  // one token alone would wait for each dot product before the next
  float out[kTokens][kTernaryRows];
  for (int v = 0; v < kVectors; ++v) {
    Simd::I sum[kTokens][kSums];
    const int8_t* q[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      q[t] = x.q + (token + t) * w.n_in;
      for (int s = 0; s < kSums; ++s) sum[t][s] = Simd::izero();
    }
    for (int64_t unit = 0; unit < w.n_in / kTernaryColumns; ++unit) {
      const std::byte* codes = panel + unit * 64 + v * kVectorBytes;
      if constexpr (kTokens == 1) __builtin_prefetch(codes + 2048);  // as far as in panel_simd.h
      const Simd::I all = Simd::iload(codes);
      const Simd::I quarter[4] = {Simd::masked<3>(all), Simd::masked<3>(Simd::moved<-2>(all)),
                                  Simd::masked<3>(Simd::moved<-4>(all)), Simd::masked<3>(Simd::moved<-6>(all))};
      for (int t = 0; t < kTokens; ++t) {
        const int8_t* at = q[t] + unit * kTernaryColumns;
        sum[t][0 % kSums] = quarter_dot<0>(sum[t][0 % kSums], quarter[0], at);
        sum[t][1 % kSums] = quarter_dot<1>(sum[t][1 % kSums], quarter[1], at);
        sum[t][2 % kSums] = quarter_dot<2>(sum[t][2 % kSums], quarter[2], at);
        sum[t][3 % kSums] = quarter_dot<3>(sum[t][3 % kSums], quarter[3], at);
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      Simd::I total = Simd::iset1(-x.sum[token + t]);  // codes are stored plus 1
      for (int s = 0; s < kSums; ++s) total = Simd::iadd(total, sum[t][s]);
      const Simd::F scaled = Simd::mul(Simd::to_float(total), Simd::set1(x.scale[token + t]));
      Simd::store(&out[t][v * Simd::kLanes], Simd::mul(scaled, Simd::set1(w.scale)));
    }
  }
  const size_t bytes = sizeof(float) * size_t(std::min<int64_t>(kTernaryRows, w.n_out - row));
  for (int t = 0; t < kTokens; ++t) __builtin_memcpy(&y(token + t, row), out[t], bytes);
}

void run_ternary(CpuContext& context, const Linear& w, View2<const float> x_in, View2<float> y) {
  const Int8Tokens x = quantize_tokens(context, w, x_in);
  const int64_t panel_bytes = kTernaryRows * w.n_in / 4, n_panels = (w.n_out + kTernaryRows - 1) / kTernaryRows;
  // About 64 KiB of weights a task for one token: enough to amortise the hand-out, small enough to balance.
  const int64_t panels_per_task = y.rows == 1 ? std::max<int64_t>(1, 65536 / panel_bytes) : 1;
  context.pool.for_each((n_panels + panels_per_task - 1) / panels_per_task, [&](int64_t task, int) {
    const int64_t last = std::min(n_panels, (task + 1) * panels_per_task);
    for (int64_t p = task * panels_per_task; p < last; ++p) {
      const std::byte* panel = w.panels + p * panel_bytes;
      int64_t token = 0;
      constexpr int kTile = Simd::kGemmRows;
      for (; token + kTile <= y.rows; token += kTile) ternary_tile<kTile>(panel, w, x, token, p * kTernaryRows, y);
      for (; token < y.rows; ++token) ternary_tile<1>(panel, w, x, token, p * kTernaryRows, y);
    }
  });
}

}  // namespace
}  // namespace ridge
