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

/// rotor-3t, head_dim up to 256: the two bytes of every window into a dword, shifted; its bits choose the entries of
/// both tables, which its lowest bit mirrors.
void decode_rows_trellis(const KvFormat&, const KvCoding& coding, const std::byte* rows, int64_t row_bytes, int count,
                         int head_dim, float* out) {
  static constexpr TrellisTables kTables;
  alignas(32) float own[8], before[8];
  for (int i = 0; i < 8; ++i) own[i] = kTables.own[i], before[i] = kTables.before[i];
  const __m256 own_levels = _mm256_load_ps(own), before_levels = _mm256_load_ps(before);
  const __m256i one = _mm256_set1_epi32(1), flips = _mm256_set1_epi32(kFlipOwn << 4 | kFlipBefore << 1);
  const TrellisWindows windows(head_dim);
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim) {
    const __m256 step = _mm256_set1_ps(KvRotor3t::row_scale(rows, head_dim, coding) * KvRotor3t::kUnit);
    for (int d = 0; d < head_dim; d += 8) {
      const TrellisWindows::Four* const four = windows.of + d / 4;
      const auto bytes = [&](int q) {
        return _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + four[q].first)),
                                _mm_load_si128(reinterpret_cast<const __m128i*>(four[q].bytes)));
      };
      const auto shifts = [&](int q) { return _mm_load_si128(reinterpret_cast<const __m128i*>(four[q].shifts)); };
      const __m256i window =
          _mm256_srlv_epi32(_mm256_set_m128i(bytes(1), bytes(0)), _mm256_set_m128i(shifts(1), shifts(0)));
      const __m256i lowest = _mm256_and_si256(window, one);
      const __m256i index =
          _mm256_xor_si256(window, _mm256_and_si256(_mm256_sub_epi32(_mm256_setzero_si256(), lowest), flips));
      // The look-ups take the low three bits.
      const __m256 levels = _mm256_add_ps(_mm256_permutevar8x32_ps(own_levels, _mm256_srli_epi32(index, 4)),
                                          _mm256_permutevar8x32_ps(before_levels, _mm256_srli_epi32(index, 1)));
      _mm256_storeu_ps(out + d, _mm256_mul_ps(levels, step));
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
  if (format.name == KvRotor3t::kName && head_dim <= kMaxTrellisDim) return decode_rows_trellis;
  if (format.name == KvRotor3s::kName) return decode_rows_levels3<KvRotor3s>;
  if (format.name == KvRotor3u::kName) return decode_rows_levels3<KvRotor3u>;
  return decode_rows_generic;
}

}  // namespace ridge
