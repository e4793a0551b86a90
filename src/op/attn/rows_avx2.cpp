// KV row decoders for AVX2.
#include "op/simd/avx2.h"
// The Simd struct above must come first.
#include "op/attn/rows_simd.h"

namespace ridge {
namespace {

/// rotor-3: 8 codes sit in 3 bytes; broadcast them, shift each lane to its code, and look up 8 float levels.
void decode_rows_rotor3(const KvFormat&, const std::byte* rows, int64_t row_bytes, int count, int head_dim,
                        float* out) {
  const __m256i shift = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21);
  const __m256 table = _mm256_loadu_ps(KvRotor3::kLevels.data());
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim) {
    uint16_t half;
    __builtin_memcpy(&half, rows + 3 * (head_dim / 8), 2);
    const __m256 scale = _mm256_set1_ps(f16_to_f32(half));
    for (int d = 0; d < head_dim; d += 8) {
      int32_t word;  // one byte past the codes is the scale or the next row: never past the allocation
      __builtin_memcpy(&word, rows + 3 * (d / 8), 4);
      const __m256i index = _mm256_srlv_epi32(_mm256_set1_epi32(word), shift);
      _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_permutevar8x32_ps(table, index), scale));
    }
  }
}

}  // namespace

DecodeRows decode_rows_avx2(const KvFormat& format, int head_dim) {
  if (format.name == KvF16::kName && head_dim % Simd::kLanes == 0) return decode_rows_f16;
  if (format.name == KvQ8_0::kName) return decode_rows_q8_0;
  if (format.name == KvRotor3::kName) return decode_rows_rotor3;
  return decode_rows_generic;
}

}  // namespace ridge
