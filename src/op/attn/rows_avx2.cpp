// KV row decoders for AVX2.
#include "op/simd/avx2.h"
// The Simd struct above must come first.
#include "op/attn/rows_simd.h"

namespace ridge {
namespace {

/// 3-bit levels: 8 codes sit in 3 bytes; broadcast them, shift each lane to its code, and look up 8 float levels.
template <class Format>
void decode_rows_levels3(const KvFormat&, const KvCoding& coding, const std::byte* rows, int64_t row_bytes, int count,
                         int head_dim, float* out) {
  const __m256i shift = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21);
  const __m256 table = _mm256_loadu_ps(RotorCodes<3>::kLevels.at);
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim) {
    const __m256 scale = _mm256_set1_ps(Format::row_scale(rows, head_dim, coding));
    for (int d = 0; d < head_dim; d += 8) {
      int32_t word;  // one byte past the codes is the scale, the next row or the slack: never past the allocation
      __builtin_memcpy(&word, rows + 3 * (d / 8), 4);
      const __m256i index = _mm256_srlv_epi32(_mm256_set1_epi32(word), shift);
      _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_permutevar8x32_ps(table, index), scale));
    }
  }
}

/// rotor-4: 8 codes sit in 4 bytes; both halves of the table are looked up, bit 3 of the code chooses.
void decode_rows_rotor4(const KvFormat&, const KvCoding& coding, const std::byte* rows, int64_t row_bytes, int count,
                        int head_dim, float* out) {
  const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  const __m256 low = _mm256_loadu_ps(KvRotor4::kLevels.at), high = _mm256_loadu_ps(KvRotor4::kLevels.at + 8);
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim) {
    const __m256 scale = _mm256_set1_ps(KvRotor4::row_scale(rows, head_dim, coding));
    for (int d = 0; d < head_dim; d += 8) {
      int32_t word;
      __builtin_memcpy(&word, rows + d / 2, 4);
      const __m256i index = _mm256_srlv_epi32(_mm256_set1_epi32(word), shift);
      const __m256 top_bit = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
      const __m256 level =
          _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index), top_bit);
      _mm256_storeu_ps(out + d, _mm256_mul_ps(level, scale));
    }
  }
}

/// q4_0: low nibbles are values 0 to 15 of a block, high nibbles 16 to 31.
void decode_rows_q4_0(const KvFormat&, const KvCoding&, const std::byte* rows, int64_t row_bytes, int count,
                      int head_dim, float* out) {
  const __m256i mask = _mm256_set1_epi32(0xF), eight = _mm256_set1_epi32(8);
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim) {
    const std::byte* block = rows;
    for (int d = 0; d < head_dim; d += 32, block += sizeof(Q4_0::Block)) {
      const __m256 scale = _mm256_set1_ps(scale_at(block));
      for (int j = 0; j < 16; j += 8) {
        const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + 2 + j)));
        const __m256i low = _mm256_sub_epi32(_mm256_and_si256(bytes, mask), eight);
        const __m256i high = _mm256_sub_epi32(_mm256_srli_epi32(bytes, 4), eight);
        _mm256_storeu_ps(out + d + j, _mm256_mul_ps(_mm256_cvtepi32_ps(low), scale));
        _mm256_storeu_ps(out + d + 16 + j, _mm256_mul_ps(_mm256_cvtepi32_ps(high), scale));
      }
    }
  }
}

}  // namespace

DecodeRows decode_rows_avx2(const KvFormat& format, int head_dim) {
  if (const DecodeRows common = common_decoder(format, head_dim)) return common;
  if (format.name == KvQ4_0::kName) return decode_rows_q4_0;
  if (format.name == KvRotor4::kName) return decode_rows_rotor4;
  if (format.name == KvRotor3::kName) return decode_rows_levels3<KvRotor3>;
  if (format.name == KvRotor3s::kName) return decode_rows_levels3<KvRotor3s>;
  if (format.name == KvRotor3u::kName) return decode_rows_levels3<KvRotor3u>;
  return decode_rows_generic;
}

}  // namespace ridge
