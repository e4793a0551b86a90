// KV row decoders for AVX-512 (VBMI for 3-bit codes).
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/attn/rows_simd.h"

namespace ridge {
namespace {

/// 3-bit levels, head_dim a multiple of 16. A byte permute puts the two bytes that hold code i into dword i, a variable
/// shift brings the code to bit 0, and a 16-entry float permute (levels twice, so bit 3 does not matter) decodes it.
template <class Format>
void decode_rows_levels3(const KvFormat&, const KvCoding& coding, const std::byte* rows, int64_t row_bytes, int count,
                         int head_dim, float* out) {
  alignas(64) uint8_t bytes[64];
  alignas(64) uint32_t shifts[16];
  alignas(64) float levels[16];
  for (int i = 0; i < 16; ++i) {
    const uint8_t first = uint8_t(3 * i / 8);
    bytes[4 * i] = bytes[4 * i + 2] = bytes[4 * i + 3] = first;
    bytes[4 * i + 1] = uint8_t(first + 1);
    shifts[i] = uint32_t(3 * i % 8);
    levels[i] = RotorCodes<3>::kLevels.at[i % 8];
  }
  const __m512i spread = _mm512_load_si512(bytes), shift = _mm512_load_si512(shifts);
  const __m512 table = _mm512_load_ps(levels);
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim) {
    const __m512 scale = _mm512_set1_ps(Format::row_scale(rows, head_dim, coding));
    for (int d = 0; d < head_dim; d += 128) {  // 48 bytes of codes; the load may run past the row (kKvPadBytes)
      const __m512i codes = _mm512_loadu_si512(rows + 3 * (d / 8));
      __m512i where = spread;
      const int last = head_dim - d < 128 ? head_dim - d : 128;
      for (int j = 0; j < last; j += 16) {
        const __m512i index = _mm512_srlv_epi32(_mm512_permutexvar_epi8(where, codes), shift);
        _mm512_storeu_ps(out + d + j, _mm512_mul_ps(_mm512_permutexvar_ps(index, table), scale));
        where = _mm512_add_epi8(where, _mm512_set1_epi8(6));
      }
    }
  }
}

/// rotor-4, head_dim a multiple of 16: 16 codes sit in 8 bytes; each half of the lanes shifts its own 4 bytes.
void decode_rows_rotor4(const KvFormat&, const KvCoding& coding, const std::byte* rows, int64_t row_bytes, int count,
                        int head_dim, float* out) {
  const __m512i half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m512 table = _mm512_loadu_ps(KvRotor4::kLevels.at);
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim) {
    const __m512 scale = _mm512_set1_ps(KvRotor4::row_scale(rows, head_dim, coding));
    for (int d = 0; d < head_dim; d += 16) {
      const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows + d / 2));
      const __m512i words = _mm512_permutexvar_epi32(half, _mm512_castsi128_si512(codes));
      const __m512i index = _mm512_srlv_epi32(words, shift);  // the permute looks at the low 4 bits
      _mm512_storeu_ps(out + d, _mm512_mul_ps(_mm512_permutexvar_ps(index, table), scale));
    }
  }
}

/// q4_0: low nibbles are values 0 to 15 of a block, high nibbles 16 to 31.
void decode_rows_q4_0(const KvFormat&, const KvCoding&, const std::byte* rows, int64_t row_bytes, int count,
                      int head_dim, float* out) {
  const __m512i mask = _mm512_set1_epi32(0xF), eight = _mm512_set1_epi32(8);
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim) {
    const std::byte* block = rows;
    for (int d = 0; d < head_dim; d += 32, block += sizeof(Q4_0::Block)) {
      const __m512 scale = _mm512_set1_ps(scale_at(block));
      const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2)));
      const __m512i low = _mm512_sub_epi32(_mm512_and_si512(bytes, mask), eight);
      const __m512i high = _mm512_sub_epi32(_mm512_srli_epi32(bytes, 4), eight);
      _mm512_storeu_ps(out + d, _mm512_mul_ps(_mm512_cvtepi32_ps(low), scale));
      _mm512_storeu_ps(out + d + 16, _mm512_mul_ps(_mm512_cvtepi32_ps(high), scale));
    }
  }
}

}  // namespace

DecodeRows decode_rows_avx512(const KvFormat& format, int head_dim) {
  if (const DecodeRows common = common_decoder(format, head_dim)) return common;
  const bool whole = head_dim % 16 == 0;
  if (format.name == KvQ4_0::kName) return decode_rows_q4_0;
  if (format.name == KvRotor4::kName && whole) return decode_rows_rotor4;
  if (format.name == KvRotor3::kName && whole) return decode_rows_levels3<KvRotor3>;
  if (format.name == KvRotor3s::kName && whole) return decode_rows_levels3<KvRotor3s>;
  if (format.name == KvRotor3u::kName && whole) return decode_rows_levels3<KvRotor3u>;
  return decode_rows_generic;
}

}  // namespace ridge
