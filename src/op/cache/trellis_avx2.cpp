#include "op/cache/rounding.h"
#include "op/simd/avx2.h"

namespace ridge {
namespace {

/// Both halves are looked up; bit 3 of an index chooses.
inline void move_states(const int32_t* from, const float* in, float* out) {
  const __m256 low = _mm256_load_ps(in), high = _mm256_load_ps(in + 8);
  for (int s = 0; s < 16; s += 8) {
    const __m256i index = _mm256_load_si256(reinterpret_cast<const __m256i*>(from + s));
    const __m256 of_high = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    _mm256_store_ps(out + s, _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index),
                                              _mm256_permutevar8x32_ps(high, index), of_high));
  }
}

}  // namespace
}  // namespace ridge

// move_states() must come first.
#include "op/cache/trellis_simd.h"

namespace ridge {

void code_trellis_avx2(const float* u, const float* factor, int dim, TrellisRow& out) {
  run_code_trellis(u, factor, dim, out);
}

}  // namespace ridge
