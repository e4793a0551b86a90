// Weight blocks to floats with vectors: the same bits as each format's reference decode. Include after a Simd struct.
//
// A block becomes bytes first, one code each (32 at a time in a 256-bit register, on either ISA), then floats. Products
// of fp16 scales and codes are exact in float, so a fused multiply-add rounds no differently than the reference.
#pragma once

#include "format/int4_g128.h"
#include "format/iq4.h"
#include "format/list.h"
#include "format/mxfp4.h"
#include "format/q2_k.h"
#include "format/q3_k.h"
#include "format/q4_0.h"
#include "format/q4_1.h"
#include "format/q4_k.h"
#include "format/q5_0.h"
#include "format/q5_1.h"
#include "format/q5_k.h"
#include "format/q6_k.h"
#include "format/q8_0.h"
#include "op/simd/loads.h"

namespace ridge {
namespace {

inline float f16_to_float(uint16_t half) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half))); }
inline __m256i bytes32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m256i low_bits(__m256i a, int mask) { return _mm256_and_si256(a, _mm256_set1_epi8(char(mask))); }

/// 32 codes from 16 bytes: low nibbles, then high nibbles.
inline __m256i nibbles32(const uint8_t* q) {
  const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  return low_bits(_mm256_set_m128i(_mm_srli_epi16(both, 4), both), 0xF);
}
/// 16 in byte i where bit i of `bits` is set.
inline __m256i fifth_bits(const uint8_t* bits) {
  int32_t word;
  __builtin_memcpy(&word, bits, 4);
  const __m256i spread = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), spread);
  const __m256i each = _mm256_set1_epi64x(int64_t(0x8040201008040201));
  return low_bits(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each), 16);
}

/// out[i] = codes[i] * scale for 32 signed codes.
inline void put_scaled(__m256i codes, float scale, float* out) {
  alignas(32) int8_t bytes[32];
  _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), codes);
  for (int i = 0; i < 32; i += Simd::kLanes)
    Simd::store(out + i, Simd::mul(Simd::load_i8(bytes + i), Simd::set1(scale)));
}
/// out[i] = codes[i] * scale + offset for 32 unsigned codes.
inline void put_offset(__m256i codes, float scale, float offset, float* out) {
  alignas(32) uint8_t bytes[32];
  _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), codes);
  for (int i = 0; i < 32; i += Simd::kLanes)
    Simd::store(out + i, Simd::fma(Simd::load_u8(bytes + i), Simd::set1(scale), Simd::set1(offset)));
}

/// The same with a scale for each 16. Lanes never straddle two: 16 is a multiple of their number.
inline void put_scaled_16s(__m256i codes, const float* scales, float* out) {
  alignas(32) int8_t bytes[32];
  _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), codes);
  for (int i = 0; i < 32; i += Simd::kLanes)
    Simd::store(out + i, Simd::mul(Simd::load_i8(bytes + i), Simd::set1(scales[i / 16])));
}
/// 32 two-bit codes: bits 2k and 2k + 1 of 32 bytes, k = part % 4, of half part / 4.
inline __m256i two_bits(const uint8_t* q, int part) {
  return low_bits(_mm256_srli_epi16(bytes32(q + part / 4 * 32), part % 4 * 2), 3);
}

inline void decode_block(const Q8_0::Block& b, float* out) { put_scaled(bytes32(b.q), f16_to_float(b.scale), out); }
inline void decode_block(const Q4_0::Block& b, float* out) {
  put_scaled(_mm256_sub_epi8(nibbles32(b.q), _mm256_set1_epi8(8)), f16_to_float(b.scale), out);
}
inline void decode_block(const Q4_1::Block& b, float* out) {
  put_offset(nibbles32(b.q), f16_to_float(b.scale), f16_to_float(b.min), out);
}
inline void decode_block(const Q5_0::Block& b, float* out) {
  const __m256i codes = _mm256_or_si256(nibbles32(b.q), fifth_bits(b.high));
  put_scaled(_mm256_sub_epi8(codes, _mm256_set1_epi8(16)), f16_to_float(b.scale), out);
}
inline void decode_block(const Q5_1::Block& b, float* out) {
  const __m256i codes = _mm256_or_si256(nibbles32(b.q), fifth_bits(b.high));
  put_offset(codes, f16_to_float(b.scale), f16_to_float(b.min), out);
}
inline void decode_block(const Int4G128::Block& b, float* out) {
  const float scale = f16_to_float(b.scale);
  for (int i = 0; i < 64; i += 16) {  // neighbours share a byte here
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b.q + i)), mask = _mm_set1_epi8(0xF);
    const __m128i low = _mm_and_si128(both, mask), high = _mm_and_si128(_mm_srli_epi16(both, 4), mask);
    const __m256i codes = _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
    put_scaled(_mm256_sub_epi8(codes, _mm256_set1_epi8(8)), scale, out + 2 * i);
  }
}
/// scale_j * code - min_j, the codes given by codes(j, bytes of the pair's nibbles).
template <class Block, class Codes>
inline void decode_super_block(const Block& b, float* out, Codes codes) {
  const float d = f16_to_float(b.d), dmin = f16_to_float(b.dmin);
  for (int j = 0; j < kSubGroups; ++j) {
    // As unpack_scale_min(), which must not be emitted here.
    const uint8_t* s = b.scales;
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 0xF) | s[j - 4] >> 6 << 4;
    const int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
    const __m256i both = bytes32(b.q + j / 2 * kSubGroup);
    const __m256i nibbles = low_bits(j % 2 == 0 ? both : _mm256_srli_epi16(both, 4), 0xF);
    put_offset(codes(j, nibbles), d * float(scale), -(dmin * float(min)), out + j * kSubGroup);
  }
}
inline void decode_block(const Q4_K::Block& b, float* out) {
  decode_super_block(b, out, [](int, __m256i nibbles) { return nibbles; });
}
inline void decode_block(const Q5_K::Block& b, float* out) {
  const __m256i high = bytes32(b.high);
  decode_super_block(b, out, [high](int j, __m256i nibbles) {
    const __m256i bit = _mm256_set1_epi8(char(1 << j));
    return _mm256_or_si256(nibbles, low_bits(_mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit), 16));
  });
}
inline void decode_block(const Q6_K::Block& b, float* out) {
  const float d = f16_to_float(b.d);
  for (int part = 0; part < 8; ++part) {  // 32 weights of half part / 4, quarter part % 4
    const int half = part / 4, quarter = part % 4;
    const __m256i low = bytes32(b.low + 64 * half + 32 * (quarter % 2)), high = bytes32(b.high + 32 * half);
    const __m256i pairs = low_bits(_mm256_srli_epi16(high, 2 * quarter), 3);
    const __m256i nibbles = low_bits(quarter < 2 ? low : _mm256_srli_epi16(low, 4), 0xF);
    const __m256i codes = _mm256_or_si256(nibbles, _mm256_slli_epi16(pairs, 4));
    const float scales[] = {d * float(b.scales[2 * part]), d * float(b.scales[2 * part + 1])};
    put_scaled_16s(_mm256_sub_epi8(codes, _mm256_set1_epi8(32)), scales, out + 32 * part);
  }
}
inline void decode_block(const Q3_K::Block& b, float* out) {
  const float d = f16_to_float(b.d);
  const __m256i high = bytes32(b.high);
  for (int part = 0; part < 8; ++part) {
    const __m256i bit = _mm256_set1_epi8(char(1 << part));
    const __m256i third = low_bits(_mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit), 4);
    const __m256i codes = _mm256_or_si256(two_bits(b.q, part), third);
    float scales[2];
    for (int i = 0; i < 2; ++i) {  // as Q3_K::scale_of(), which must not be emitted here
      const int j = 2 * part + i;
      const int low = b.scales[j % 8] >> (j / 8 * 4) & 0xF, top = b.scales[8 + j % 4] >> (j / 4 * 2) & 3;
      scales[i] = d * float((low | top << 4) - 32);
    }
    put_scaled_16s(_mm256_sub_epi8(codes, _mm256_set1_epi8(4)), scales, out + 32 * part);
  }
}
inline void decode_block(const Q2_K::Block& b, float* out) {
  const float d = f16_to_float(b.d), dmin = f16_to_float(b.dmin);
  for (int part = 0; part < 8; ++part) {
    alignas(32) uint8_t bytes[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), two_bits(b.q, part));
    for (int i = 0; i < 32; i += Simd::kLanes) {
      const int pair = b.scales[2 * part + i / 16];
      const auto scale = Simd::set1(d * float(pair & 0xF)), min = Simd::set1(-(dmin * float(pair >> 4)));
      Simd::store(out + 32 * part + i, Simd::fma(Simd::load_u8(bytes + i), scale, min));
    }
  }
}
/// The bytes of a table of 16 for 32 codes from 16 bytes.
inline __m256i looked_up(const int8_t* table, const uint8_t* q) {
  const __m128i once = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(once), nibbles32(q));
}
constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kFp4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline void decode_block(const IQ4_NL::Block& b, float* out) {
  put_scaled(looked_up(kIq4Levels, b.q), f16_to_float(b.d), out);
}
inline void decode_block(const IQ4_XS::Block& b, float* out) {
  const float d = f16_to_float(b.d);
  for (int j = 0; j < 8; ++j) {
    const int scale = (b.scales[j / 2] >> (j % 2 * 4) & 0xF) | (b.high >> (2 * j) & 3) << 4;
    put_scaled(looked_up(kIq4Levels, b.q + 16 * j), d * float(scale - 32), out + 32 * j);
  }
}
inline void decode_block(const MXFP4::Block& b, float* out) {
  const int bits = b.exponent < 2 ? 0x00200000 << b.exponent : (b.exponent - 1) << 23;
  put_scaled(looked_up(kFp4Doubled, b.q), _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits))), out);
}

template <class F>
void decode_row(const std::byte* blocks, int64_t n, float* out) {
  typename F::Block block;  // copied: a tensor may start at any byte of a file
  for (int64_t i = 0; i < n / F::kGroup; ++i) {
    __builtin_memcpy(&block, blocks + i * int64_t(sizeof block), sizeof block);
    decode_block(block, out + i * F::kGroup);
  }
}

using RowDecoder = void (*)(const std::byte* blocks, int64_t n, float* out);

template <class... Formats>
inline RowDecoder find_row_decoder(const WeightFormat& format) {
  RowDecoder found = format.decode;
  ((format.name == Formats::kName ? void(found = decode_row<Formats>) : void()), ...);
  return found;
}
/// Rows of plain values.
template <class Load>
void decode_values(const std::byte* row, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + Simd::kLanes <= n; i += Simd::kLanes) Simd::store(out + i, Load::load(row, i));
  for (; i < n; ++i) out[i] = Load::one(row, i);
}
/// This ISA's decoder of a format; its reference decoder where there is none.
inline RowDecoder row_decoder(const WeightFormat& format) {
  if (format.name == F16::kName) return decode_values<LoadF16>;
  if (format.name == BF16::kName) return decode_values<LoadBF16>;
  if (format.name == F32::kName) return decode_values<LoadF32>;
  return find_row_decoder<Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0, IQ4_NL, IQ4_XS, MXFP4, Q3_K, Q2_K, Int4G128>(
      format);
}

}  // namespace
}  // namespace ridge
