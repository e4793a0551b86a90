// Weight blocks to floats with vectors: the same bits as each format's reference decode. Include after a Simd struct.
//
// A block becomes bytes first, one code each (32 at a time, op/simd/bytes_avx2.h), then floats. Products of fp16 scales
// and codes are exact in float, so a fused multiply-add rounds no differently than the reference.
#pragma once

#include "format/fp8_g32.h"
#include "format/int4_g128.h"
#include "format/iq4.h"
#include "format/list.h"
#include "format/mxfp4.h"
#include "format/nvfp4.h"
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

/// out[i] = codes[i] * scale for 32 signed codes.
inline void put_scaled(Bytes codes, float scale, float* out) {
  alignas(32) int8_t bytes[32];
  store_bytes(bytes, codes);
  for (int i = 0; i < 32; i += Simd::kLanes)
    Simd::store(out + i, Simd::mul(Simd::load_i8(bytes + i), Simd::set1(scale)));
}
/// out[i] = codes[i] * scale + offset for 32 unsigned codes.
inline void put_offset(Bytes codes, float scale, float offset, float* out) {
  alignas(32) uint8_t bytes[32];
  store_bytes(bytes, codes);
  for (int i = 0; i < 32; i += Simd::kLanes)
    Simd::store(out + i, Simd::fma(Simd::load_u8(bytes + i), Simd::set1(scale), Simd::set1(offset)));
}

/// out[i] = codes[i] * scales[i / 16] for 32 codes. Lanes never straddle two scales: 16 is a multiple of their number.
inline void put_scaled_16s(Bytes codes, const float* scales, float* out) {
  alignas(32) int8_t bytes[32];
  store_bytes(bytes, codes);
  for (int i = 0; i < 32; i += Simd::kLanes)
    Simd::store(out + i, Simd::mul(Simd::load_i8(bytes + i), Simd::set1(scales[i / 16])));
}
/// 32 two-bit codes: bits 2k and 2k + 1 of 32 bytes, k = part % 4, of half part / 4.
inline Bytes two_bits(const uint8_t* q, int part) {
  return low_bits(moved_down(bytes32(q + part / 4 * 32), part % 4 * 2), 3);
}

inline void decode_block(const Q8_0::Block& b, float* out) { put_scaled(bytes32(b.q), f16_to_float(b.scale), out); }
inline void decode_block(const Q4_0::Block& b, float* out) {
  put_scaled(minus(nibbles32(b.q), 8), f16_to_float(b.scale), out);
}
inline void decode_block(const Q4_1::Block& b, float* out) {
  put_offset(nibbles32(b.q), f16_to_float(b.scale), f16_to_float(b.min), out);
}
inline void decode_block(const Q5_0::Block& b, float* out) {
  const Bytes codes = either(nibbles32(b.q), fifth_bits(b.high));
  put_scaled(minus(codes, 16), f16_to_float(b.scale), out);
}
inline void decode_block(const Q5_1::Block& b, float* out) {
  const Bytes codes = either(nibbles32(b.q), fifth_bits(b.high));
  put_offset(codes, f16_to_float(b.scale), f16_to_float(b.min), out);
}
inline void decode_block(const Int4G128::Block& b, float* out) {
  const float scale = f16_to_float(b.scale);
  for (int i = 0; i < 64; i += 16) put_scaled(minus(neighbours32(b.q + i), 8), scale, out + 2 * i);
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
    const Bytes both = bytes32(b.q + j / 2 * kSubGroup);
    const Bytes nibbles = low_bits(j % 2 == 0 ? both : moved_down(both, 4), 0xF);
    put_offset(codes(j, nibbles), d * float(scale), -(dmin * float(min)), out + j * kSubGroup);
  }
}
inline void decode_block(const Q4_K::Block& b, float* out) {
  decode_super_block(b, out, [](int, Bytes nibbles) { return nibbles; });
}
inline void decode_block(const Q5_K::Block& b, float* out) {
  const Bytes high = bytes32(b.high);
  decode_super_block(b, out, [high](int j, Bytes nibbles) { return either(nibbles, where_bit(high, 1 << j, 16)); });
}
inline void decode_block(const Q6_K::Block& b, float* out) {
  const float d = f16_to_float(b.d);
  for (int part = 0; part < 8; ++part) {  // 32 weights of half part / 4, quarter part % 4
    const int half = part / 4, quarter = part % 4;
    const Bytes low = bytes32(b.low + 64 * half + 32 * (quarter % 2)), high = bytes32(b.high + 32 * half);
    const Bytes pairs = low_bits(moved_down(high, 2 * quarter), 3);
    const Bytes nibbles = low_bits(quarter < 2 ? low : moved_down(low, 4), 0xF);
    const Bytes codes = either(nibbles, moved_up(pairs, 4));
    const float scales[] = {d * float(b.scales[2 * part]), d * float(b.scales[2 * part + 1])};
    put_scaled_16s(minus(codes, 32), scales, out + 32 * part);
  }
}
inline void decode_block(const Q3_K::Block& b, float* out) {
  const float d = f16_to_float(b.d);
  const Bytes high = bytes32(b.high);
  for (int part = 0; part < 8; ++part) {
    const Bytes codes = either(two_bits(b.q, part), where_bit(high, 1 << part, 4));
    float scales[2];
    for (int i = 0; i < 2; ++i) {  // as Q3_K::scale_of(), which must not be emitted here
      const int j = 2 * part + i;
      const int low = b.scales[j % 8] >> (j / 8 * 4) & 0xF, top = b.scales[8 + j % 4] >> (j / 4 * 2) & 3;
      scales[i] = d * float((low | top << 4) - 32);
    }
    put_scaled_16s(minus(codes, 4), scales, out + 32 * part);
  }
}
inline void decode_block(const Q2_K::Block& b, float* out) {
  const float d = f16_to_float(b.d), dmin = f16_to_float(b.dmin);
  for (int part = 0; part < 8; ++part) {
    alignas(32) uint8_t bytes[32];
    store_bytes(bytes, two_bits(b.q, part));
    for (int i = 0; i < 32; i += Simd::kLanes) {
      const int pair = b.scales[2 * part + i / 16];
      const auto scale = Simd::set1(d * float(pair & 0xF)), min = Simd::set1(-(dmin * float(pair >> 4)));
      Simd::store(out + 32 * part + i, Simd::fma(Simd::load_u8(bytes + i), scale, min));
    }
  }
}
constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kFp4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline void decode_block(const IQ4_NL::Block& b, float* out) {
  put_scaled(looked_up(kIq4Levels, nibbles32(b.q)), f16_to_float(b.d), out);
}
inline void decode_block(const IQ4_XS::Block& b, float* out) {
  const float d = f16_to_float(b.d);
  for (int j = 0; j < 8; ++j) {
    const int scale = (b.scales[j / 2] >> (j % 2 * 4) & 0xF) | (b.high >> (2 * j) & 3) << 4;
    put_scaled(looked_up(kIq4Levels, nibbles32(b.q + 16 * j)), d * float(scale - 32), out + 32 * j);
  }
}
inline void decode_block(const MXFP4::Block& b, float* out) {
  const int bits = b.exponent < 2 ? 0x00200000 << b.exponent : (b.exponent - 1) << 23;
  put_scaled(looked_up(kFp4Doubled, nibbles32(b.q)), __builtin_bit_cast(float, bits), out);
}

inline void decode_block(const NVFP4::Block& b, float* out) {
  for (int pair = 0; pair < 2; ++pair) {
    alignas(32) int8_t both[32], levels[32];  // eights 0 and 1 of two groups: 0, 0, 1, 1; then 0, 1, 0, 1
    store_bytes(both, looked_up(kFp4Doubled, nibbles32(b.q + 16 * pair)));
    for (int k = 0; k < 4; ++k) __builtin_memcpy(levels + 8 * (k % 2 * 2 + k / 2), both + 8 * k, 8);
    for (int i = 0; i < 32; i += Simd::kLanes) {
      const int code = b.scales[2 * pair + i / 16];
      const float scale = 128 * f16_to_float(uint16_t((code & 0x80) << 8 | (code & 0x7F) << 7));
      Simd::store(out + 32 * pair + i, Simd::mul(Simd::load_i8(levels + i), Simd::set1(scale)));
    }
  }
}

template <class F>
void decode_row(const std::byte* blocks, int64_t n, float* out) {
  typename F::Block block;  // copied: a tensor may start at any byte of a file
  for (int64_t i = 0; i < n / F::kGroup; ++i) {
    __builtin_memcpy(&block, blocks + i * int64_t(sizeof block), sizeof block);
    decode_block(block, out + i * F::kGroup);
  }
}

/// Read where they lie: vectors that straddle what a copy has just stored would wait for it.
template <>
inline void decode_row<FP8_G32>(const std::byte* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += FP8_G32::kGroup, blocks += sizeof(FP8_G32::Block)) {
    float scale;
    __builtin_memcpy(&scale, blocks, sizeof scale);
    const auto by = Simd::set1(256 * scale);
    const std::byte* const codes = blocks + offsetof(FP8_G32::Block, q);
    for (int at = 0; at < FP8_G32::kGroup; at += Simd::kLanes)
      Simd::store(out + i + at, Simd::mul(Simd::load_e4m3(codes + at), by));
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
  return find_row_decoder<FP8_G32, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0, IQ4_NL, IQ4_XS, NVFP4, MXFP4, Q3_K,
                          Q2_K, Int4G128>(format);
}

}  // namespace
}  // namespace ridge
