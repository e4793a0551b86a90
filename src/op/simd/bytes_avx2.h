// The 32 bytes that weight decoders (op/simd/decode.h) work on, one code each, in a 256-bit register: for avx2 and
// avx512. Include only from op/simd/avx2.h and op/simd/avx512.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

/// Keeps a vector in its register: the compiler may not make it again. A function that took a reference to it would put
/// arrays of vectors into memory.
#define RIDGE_KEEP(vector) asm("" : "+v"(vector))

namespace ridge {
namespace {

using Bytes = __m256i;

inline float f16_to_float(uint16_t half) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half))); }
inline Bytes bytes32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_bytes(void* p, Bytes a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }

inline Bytes low_bits(Bytes a, int mask) { return _mm256_and_si256(a, _mm256_set1_epi8(char(mask))); }
inline Bytes either(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
inline Bytes minus(Bytes a, int value) { return _mm256_sub_epi8(a, _mm256_set1_epi8(char(value))); }
/// Every byte moved by `bits`; the bits that come in belong to a neighbour, so mask them with low_bits().
inline Bytes moved_down(Bytes a, int bits) { return _mm256_srli_epi16(a, bits); }
/// Every byte moved up by `bits`, for codes that stay inside their byte.
inline Bytes moved_up(Bytes a, int bits) { return _mm256_slli_epi16(a, bits); }
/// `value` in the bytes that have the bit of `mask`, 0 in the others.
inline Bytes where_bit(Bytes a, int mask, int value) {
  const Bytes bit = _mm256_set1_epi8(char(mask));
  return low_bits(_mm256_cmpeq_epi8(_mm256_and_si256(a, bit), bit), value);
}

/// 32 codes from 16 bytes: low nibbles, then high nibbles.
inline Bytes nibbles32(const uint8_t* q) {
  const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  return low_bits(_mm256_set_m128i(_mm_srli_epi16(both, 4), both), 0xF);
}
/// 32 codes from 16 bytes: the low and the high nibble of each are neighbours.
inline Bytes neighbours32(const uint8_t* q) {
  const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q)), mask = _mm_set1_epi8(0xF);
  const __m128i low = _mm_and_si128(both, mask), high = _mm_and_si128(_mm_srli_epi16(both, 4), mask);
  return _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
}
/// 16 in byte i where bit i of `bits` is set.
inline Bytes fifth_bits(const uint8_t* bits) {
  int32_t word;
  __builtin_memcpy(&word, bits, 4);
  const __m256i spread = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), spread);
  const __m256i each = _mm256_set1_epi64x(int64_t(0x8040201008040201));
  return low_bits(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each), 16);
}
/// The bytes of a table of 16 for 32 codes below 16.
inline Bytes looked_up(const int8_t* table, Bytes codes) {
  const __m128i once = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(once), codes);
}

}  // namespace
}  // namespace ridge
