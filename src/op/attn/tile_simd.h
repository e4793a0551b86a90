// The two inner loops of attention on a tile of decoded rows. A tile is kTile rows of `stride` floats (head_dim rounded
// up to whole vectors, padding zero). Both ask for a line of later memory now and then.
#pragma once

#include "op/attn/ahead.h"
#include "op/attn/kernels.h"
#include "op/simd/exp.h"
#include "op/simd/unrolled.h"

namespace ridge {
namespace {

constexpr int kTile = 32;
constexpr float kMasked = -1e30f;

inline int padded_dim(int head_dim) { return (head_dim + Simd::kLanes - 1) / Simd::kLanes * Simd::kLanes; }

/// Calls body(stride) with the stride as a constant where it is that of a usual head: addresses become offsets, and the
/// loops over a row unroll.
template <class Body>
[[gnu::always_inline]] inline void with_known(int stride, const Body& body) {
  switch (stride) {
    case 64: body(std::integral_constant<int, 64>{}); break;
    case 128: body(std::integral_constant<int, 128>{}); break;
    case 256: body(std::integral_constant<int, 256>{}); break;
    default: body(stride);
  }
}

/// score[i] = scale * <q, row i> for kRows rows; kLanes rows at a time, summed across lanes together.
template <int kRows, class Stride>
inline void tile_scores_of(const float* q, const float* rows, Stride stride, float scale, Ahead& ahead, float* score) {
  for (int first = 0; first < kRows; first += Simd::kLanes) {
    Simd::F sum[Simd::kLanes];
    unrolled<Simd::kLanes>([&](auto i) { sum[i] = Simd::zero(); });
    const float* row = rows + int64_t(first) * stride;
    for (int d = 0; d < stride; d += Simd::kLanes, row += Simd::kLanes) {
      ahead.ask_next();
      const Simd::F qd = Simd::load(q + d);
      unrolled<Simd::kLanes>(
          [&](auto i) { sum[Simd::slot(i)] = Simd::fma(qd, Simd::load(row + i * stride), sum[Simd::slot(i)]); });
    }
    Simd::store(score + first, Simd::mul(Simd::sum_each(sum), Simd::set1(scale)));
  }
}

/// Not inlined: among a caller's values GCC 12 keeps the sums in memory.
template <int kRows = kTile>
[[gnu::noinline]] inline void tile_scores(const float* q, const float* rows, int stride, float scale, Ahead& ahead,
                                          float* score) {
  with_known(stride, [&](auto known) { tile_scores_of<kRows>(q, rows, known, scale, ahead, score); });
}

/// out[j][..] += sum_i p[j][i] * row i for kRows queries.
template <int kRows, class Stride>
inline void tile_values_rows(const float* p, int64_t p_stride, const float* rows, int count, Stride stride,
                             Ahead& ahead, float* out) {
  constexpr int kVectors = Simd::kLanes == 16 ? 4 : 2;
  int d = 0;
  const auto run = [&]<int kWidth>() {
    Simd::F sum[kRows * kWidth];  // of (query, vector)
    const auto at = [&](auto i) { return out + int64_t(i / kWidth) * stride + d + i % kWidth * Simd::kLanes; };
    unrolled<kRows * kWidth>([&](auto i) { sum[i] = Simd::load(at(i)); });
    const float* from = rows + d;
    for (int i = 0; i < count; ++i, from += stride) {
      ahead.ask_next();
      Simd::F row[kWidth];
      unrolled<kWidth>([&](auto v) {
        row[v] = Simd::load(from + v * Simd::kLanes);
        RIDGE_KEEP(row[v]);  // for few queries GCC 12 loads it again for each
      });
      unrolled<kRows>([&](auto j) {
        const Simd::F weight = Simd::set1(p[j * p_stride + i]);
        unrolled<kWidth>([&](auto v) { sum[j * kWidth + v] = Simd::fma(weight, row[v], sum[j * kWidth + v]); });
      });
    }
    unrolled<kRows * kWidth>([&](auto i) { Simd::store(at(i), sum[i]); });
    d += kWidth * Simd::kLanes;
  };
  while (d + kVectors * Simd::kLanes <= stride) run.template operator()<kVectors>();
  while (d < stride) run.template operator()<1>();
}

/// How many of n queries a kernel takes together: four, or what divides the rest best.
inline int rows_at_once(int n) { return n >= 8 || n == 4 ? 4 : n > 4 ? 3 : n; }

template <class Stride>
inline void tile_values_of(int n_rows, const float* p, int64_t p_stride, const float* rows, int count, Stride stride,
                           Ahead& ahead, float* out) {
  for (int j = 0; j < n_rows;) {
    const int take = rows_at_once(n_rows - j);
    const float* pj = p + j * p_stride;
    float* oj = out + int64_t(j) * stride;
    switch (take) {
      case 4: tile_values_rows<4>(pj, p_stride, rows, count, stride, ahead, oj); break;
      case 3: tile_values_rows<3>(pj, p_stride, rows, count, stride, ahead, oj); break;
      case 2: tile_values_rows<2>(pj, p_stride, rows, count, stride, ahead, oj); break;
      default: tile_values_rows<1>(pj, p_stride, rows, count, stride, ahead, oj);
    }
    j += take;
  }
}

inline void tile_values(int n_rows, const float* p, int64_t p_stride, const float* rows, int count, int stride,
                        Ahead& ahead, float* out) {
  with_known(stride, [&](auto known) { tile_values_of(n_rows, p, p_stride, rows, count, known, ahead, out); });
}

/// Replaces n scores (n a multiple of kLanes) by exp(score - top); returns their sum. Masked scores become 0 exactly.
inline float exponentials(float* score, int n, float top) {
  Simd::F total = Simd::zero();
  const Simd::F shift = Simd::set1(top);
  for (int i = 0; i < n; i += Simd::kLanes) {
    const Simd::F s = Simd::load(score + i);
    const Simd::F p = Simd::select_ge(s, Simd::set1(0.5f * kMasked), vector_exp(Simd::sub(s, shift)));
    Simd::store(score + i, p);
    total = Simd::add(total, p);
  }
  return Simd::sum(total);
}

inline float largest(const float* score, int n) {
  Simd::F top = Simd::load(score);
  for (int i = Simd::kLanes; i < n; i += Simd::kLanes) top = Simd::max(top, Simd::load(score + i));
  return Simd::top(top);
}

/// Copies rows of `dim` floats to rows of `stride`, in place from the last to the first, zeroing the padding.
inline void widen_rows(float* rows, int count, int dim, int stride) {
  if (dim == stride) return;
  for (int i = count - 1; i >= 0; --i) {
    __builtin_memmove(rows + int64_t(i) * stride, rows + int64_t(i) * dim, sizeof(float) * size_t(dim));
    for (int d = dim; d < stride; ++d) rows[int64_t(i) * stride + d] = 0;
  }
}

}  // namespace
}  // namespace ridge
