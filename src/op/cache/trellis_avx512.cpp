// The trellis search with a vector lane a state. Feedback on places of the same block of 16 follows every step; on
// later places it follows a block: paths are moved once, then the block's 16 levels are added in their order.
#include "op/cache/rounding.h"
#include "op/cache/trellis_levels.h"
#include "op/simd/avx512.h"
#include "op/simd/unrolled.h"

namespace ridge {
namespace {

constexpr int kBlock = 16;

/// The cheapest way into every state so far.
struct Best {
  __m512 cost, level;
  __m512i from;
};
inline Best way_into(int way, __m512 cost, __m512 wanted, __m512 weight) {
  const __m512i from = _mm512_load_si512(kTrellisLevels.from[way]);
  const __m512 level = _mm512_load_ps(kTrellisLevels.of_way[way]);
  const __m512 error = _mm512_sub_ps(_mm512_permutexvar_ps(from, wanted), level);
  return {_mm512_fmadd_ps(_mm512_mul_ps(error, error), weight, _mm512_permutexvar_ps(from, cost)), level, from};
}
/// The first of equals is kept.
inline Best better(const Best& a, const Best& b) {
  const __mmask16 less = _mm512_cmp_ps_mask(b.cost, a.cost, _CMP_LT_OQ);
  return {_mm512_mask_mov_ps(a.cost, less, b.cost), _mm512_mask_mov_ps(a.level, less, b.level),
          _mm512_mask_mov_epi32(a.from, less, b.from)};
}

/// times_factor(), 16 places at a time.
void multiply(const float* u, const float* factor, int dim, float* out) {
  for (int first = 0; first < dim; first += kBlock) {
    __m512 sum = _mm512_loadu_ps(u + first);
    const float* row = factor + first;
    if (factor) {
      for (int j = 0; j < first; ++j, row += dim)
        sum = _mm512_fmadd_ps(_mm512_set1_ps(u[j]), _mm512_loadu_ps(row), sum);
      for (int j = 0; j < kBlock; ++j, row += dim)
        sum = _mm512_mask3_fmadd_ps(_mm512_set1_ps(u[first + j]), _mm512_loadu_ps(row), sum, __mmask16(0xFFFE << j));
    }
    _mm512_storeu_ps(out + first, sum);
  }
}

}  // namespace

void code_trellis_avx512(const float* u, const float* factor, int dim, TrellisRow& out) {
  alignas(64) float feedback[kMaxRoundingDim][kTrellisStates];
  alignas(64) uint8_t from[kMaxRoundingDim][kTrellisStates];
  alignas(64) float costs[kTrellisStates];
  multiply(u, factor, dim, out.of_values);
  for (int k = 0; k < dim; ++k) _mm512_store_ps(feedback[k], _mm512_setzero_ps());
  __m512 cost = _mm512_mask_mov_ps(_mm512_set1_ps(__builtin_inff()), 1, _mm512_setzero_ps());
  for (int first = 0; first < dim; first += kBlock) {
    __m512 levels[kBlock];  // of the paths, place by place
    __m512i origin = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    unrolled<kBlock>([&](auto i) {
      const int k = first + i;
      const float* const row = factor ? factor + int64_t(k) * dim : nullptr;
      const __m512 weight = _mm512_set1_ps(row ? row[k] : 1.0f);
      const __m512 wanted = _mm512_sub_ps(_mm512_set1_ps(out.of_values[k]), _mm512_load_ps(feedback[k]));
      const auto pair = [&](int way) {
        return better(way_into(way, cost, wanted, weight), way_into(way + 1, cost, wanted, weight));
      };
      const Best best = better(better(pair(0), pair(2)), better(pair(4), pair(6)));
      cost = best.cost;
      _mm_store_si128(reinterpret_cast<__m128i*>(from[k]), _mm512_cvtepi32_epi8(best.from));
      if (!factor) return;
      for (int j = i + 1; j < kBlock; ++j) {
        const __m512 moved = _mm512_permutexvar_ps(best.from, _mm512_load_ps(feedback[first + j]));
        _mm512_store_ps(feedback[first + j], _mm512_fmadd_ps(_mm512_set1_ps(row[first + j]), best.level, moved));
      }
      unrolled<i>([&](auto j) { levels[j] = _mm512_permutexvar_ps(best.from, levels[j]); });
      levels[i] = best.level;
      origin = _mm512_permutexvar_epi32(best.from, origin);
    });
    if (!factor) continue;
    for (int k = first + kBlock; k < dim; ++k) {
      __m512 sum = _mm512_permutexvar_ps(origin, _mm512_load_ps(feedback[k]));
      const float* weight = factor + int64_t(first) * dim + k;
      unrolled<kBlock>([&](auto i) { sum = _mm512_fmadd_ps(_mm512_set1_ps(weight[i * dim]), levels[i], sum); });
      _mm512_store_ps(feedback[k], sum);
    }
  }
  _mm512_store_ps(costs, cost);
  int state = 0;
  for (int s = 1; s < kTrellisStates; ++s)
    if (costs[s] < costs[state]) state = s;
  for (int k = dim - 1; k >= 0; --k) {
    out.codes[k] = uint8_t(state & 7);
    state = from[k][state];
  }
  alignas(64) float chosen[kMaxRoundingDim];
  unsigned window = 0;
  for (int k = 0; k < dim; ++k) {
    window = window >> 3 | unsigned(out.codes[k]) << 4;
    chosen[k] = kTrellisLevels.of_window[window];
  }
  multiply(chosen, factor, dim, out.of_levels);
}

}  // namespace ridge
