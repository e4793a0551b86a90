// KV row decoders for AVX-512 (VBMI for rotor-3).
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/attn/rows_simd.h"

namespace ridge {
namespace {

/// rotor-3, head_dim a multiple of 16. A byte permute puts the two bytes that hold code i into dword i, a variable
/// shift brings the code to bit 0, and a 16-entry float permute (levels twice, so bit 3 does not matter) decodes it.
void decode_rows_rotor3(const KvFormat&, const std::byte* rows, int64_t row_bytes, int count, int head_dim,
                        float* out) {
  alignas(64) uint8_t bytes[64];
  alignas(64) uint32_t shifts[16];
  alignas(64) float levels[16];
  for (int i = 0; i < 16; ++i) {
    const uint8_t first = uint8_t(3 * i / 8);
    bytes[4 * i] = bytes[4 * i + 2] = bytes[4 * i + 3] = first;
    bytes[4 * i + 1] = uint8_t(first + 1);
    shifts[i] = uint32_t(3 * i % 8);
    levels[i] = KvRotor3::kLevels[size_t(i % 8)];
  }
  const __m512i spread = _mm512_load_si512(bytes), shift = _mm512_load_si512(shifts);
  const __m512 table = _mm512_load_ps(levels);
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim) {
    uint16_t half;
    __builtin_memcpy(&half, rows + 3 * (head_dim / 8), 2);
    const __m512 scale = _mm512_set1_ps(f16_to_f32(half));
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

}  // namespace

DecodeRows decode_rows_avx512(const KvFormat& format, int head_dim) {
  if (format.name == KvF16::kName && head_dim % Simd::kLanes == 0) return decode_rows_f16;
  if (format.name == KvQ8_0::kName) return decode_rows_q8_0;
  if (format.name == KvRotor3::kName && head_dim % 16 == 0) return decode_rows_rotor3;
  return decode_rows_generic;
}

}  // namespace ridge
