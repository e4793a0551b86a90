// Cached rows as signed bytes, 64 values at a time: the facts of each format for the integer kernel
// (int_tiles_avx512.h).
//
// A format F has
//   kScaleBlock    values that share a scale; 0: the whole row
//   kFine          whether queries and weights need 16 bits: formats of 8 bits yes; those of 3 and 4 bits no, their own
//                  error is far above a step of 8 bits
//   kUnit          value = code * kUnit * scale
//   row_is_fixed   the scale is KvCoding::fixed, not in the row
//   scale_at(row, head_dim, block)   where the fp16 scale of a block is
//   kScaleHasSign  whether the encoder makes negative ones
//   keys(row, d)   codes of values d .. d + 63, plus 128; packed codes have four_keys() instead
//   values(row, d) the codes, negated where the scale is negative
// Both may read up to kKvPadBytes behind the row. For formats below 8 bits a code takes three instructions: a permute
// brings the bytes of 8 codes into each 64-bit word, a multishift moves each code to the bottom of a byte of its own,
// and a second permute looks its value up (the bits above the code do not matter, because the table repeats).
#pragma once

#include "format/kv_i8r.h"
#include "format/kv_p8.h"
#include "format/kv_q4_0.h"
#include "format/kv_q8_0.h"
#include "format/kv_rotor3.h"
#include "format/kv_rotor3s.h"
#include "format/kv_rotor4.h"
#include "op/attn/kernels.h"
#include "op/cache/levels.h"

namespace ridge {
namespace {

struct alignas(64) Bytes64 {
  uint8_t at[64];
  __m512i load() const { return _mm512_load_si512(at); }
};

template <class Byte>
constexpr Bytes64 each_byte(const Byte& byte) {
  Bytes64 all{};
  for (int i = 0; i < 64; ++i) all.at[i] = uint8_t(byte(i));
  return all;
}

inline __m512i look_up(const std::byte* bytes, const Bytes64& where, const Bytes64& shift, const Bytes64& values) {
  const __m512i words = _mm512_permutexvar_epi8(where.load(), _mm512_loadu_si512(bytes));
  return _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shift.load(), words), values.load());
}

/// Codes of kBits packed without gaps: rotor-3, rotor-3s, rotor-4.
template <int kBits>
struct PackedCodes {
  static constexpr int kPackedBits = kBits;
  static constexpr Bytes64 kWhere = each_byte([](int i) { return i / 8 * kBits + (i % 8 < kBits ? i % 8 : 0); });
  static constexpr Bytes64 kShift = each_byte([](int i) { return i % 8 * kBits; });
  static constexpr Bytes64 kValues = each_byte([](int i) { return IntLevels<kBits>::of(i % (1 << kBits)); });
  static constexpr Bytes64 kKeys = each_byte([](int i) { return 128 + IntLevels<kBits>::of(i % (1 << kBits)); });

  static constexpr int kScaleBlock = 0;
  static constexpr bool kFine = false, kScaleHasSign = false;
  static constexpr float kUnit = IntLevels<kBits>::kUnit;
  static const std::byte* scale_at(const std::byte* row, int head_dim, int) { return row + kBits * head_dim / 8; }
  static __m512i values(const std::byte* row, int d) { return look_up(row + kBits * d / 8, kWhere, kShift, kValues); }
  /// Keys 4 * quad .. 4 * quad + 3 of 16 rows, plus 128, from words of the rows: words[w] has bits 32 w .. 32 w + 31 of
  /// row i in lane i.
  template <int kQuad>
  static __m512i four_keys(const __m512i* words) {
    constexpr int kAt = 4 * kBits * kQuad, kWord = kAt / 32, kOffset = kAt % 32;
    constexpr bool kInside = kOffset + 4 * kBits <= 32;
    static constexpr Bytes64 kEach = each_byte([](int i) {  // a multishift sees two rows
      return i / 4 * 32 + (kInside ? kOffset : kOffset - 24) + i % 4 * kBits;
    });
    static constexpr Bytes64 kSeam = each_byte([](int i) { return i % 4 == 0 ? i + 3 : 64 + i - 1; });
    __m512i bits = words[kWord];
    if constexpr (!kInside) bits = _mm512_permutex2var_epi8(bits, kSeam.load(), words[kWord + 1]);
    return _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(kEach.load(), bits), kKeys.load());
  }
};
struct Rotor3Codes : PackedCodes<3> {
  static constexpr bool row_is_fixed = false;
};
struct Rotor3sCodes : PackedCodes<3> {
  static constexpr bool row_is_fixed = true;
};
struct Rotor4Codes : PackedCodes<4> {
  static constexpr bool row_is_fixed = false;
};

/// Blocks of 18 bytes; low nibbles are values 0 to 15 of a block, high nibbles 16 to 31.
struct Q4Codes {
  static constexpr int kBytes = int(sizeof(Q4_0::Block));
  static constexpr Bytes64 kWhere = each_byte([](int i) { return i / 32 * kBytes + 2 + i % 16; });
  static constexpr Bytes64 kShift = each_byte([](int i) { return i % 8 * 8 + (i % 32 < 16 ? 0 : 4); });
  static constexpr Bytes64 kValues = each_byte([](int i) { return i % 16 - 8; });
  static constexpr Bytes64 kKeys = each_byte([](int i) { return 128 + i % 16 - 8; });

  static constexpr int kScaleBlock = Q4_0::kGroup;
  static constexpr bool kFine = false, kScaleHasSign = true;
  static constexpr float kUnit = 1;
  static constexpr bool row_is_fixed = false;
  static const std::byte* scale_at(const std::byte* row, int, int block) { return row + block * kBytes; }
  static __m512i keys(const std::byte* row, int d) { return look_up(row + d / 32 * kBytes, kWhere, kShift, kKeys); }
  static __m512i values(const std::byte* row, int d) {
    const std::byte* block = row + d / 32 * kBytes;
    // The top bit of a scale, spread over the 32 values of its block.
    const __m512i bytes = _mm512_loadu_si512(block);
    static constexpr Bytes64 kTop = each_byte([](int i) { return i / 32 * kBytes + 1; });
    const __mmask64 negative = _mm512_movepi8_mask(_mm512_permutexvar_epi8(kTop.load(), bytes));
    const __m512i codes = look_up(block, kWhere, kShift, kValues);
    return _mm512_mask_sub_epi8(codes, negative, _mm512_setzero_si512(), codes);
  }
};

/// Shared code of formats of signed bytes; F::bytes(row, d) are the codes.
template <class F>
struct WholeBytes {
  static constexpr bool kFine = true, kScaleHasSign = false;
  static constexpr float kUnit = 1;
  static constexpr bool row_is_fixed = false;
  static __m512i keys(const std::byte* row, int d) {
    return _mm512_xor_si512(F::values(row, d), _mm512_set1_epi8(-128));
  }
};
struct Q8Codes : WholeBytes<Q8Codes> {
  static constexpr int kBytes = int(sizeof(Q8_0::Block));
  static constexpr int kScaleBlock = Q8_0::kGroup;
  static const std::byte* scale_at(const std::byte* row, int, int block) { return row + block * kBytes; }
  static __m512i values(const std::byte* row, int d) {
    const std::byte* block = row + d / 32 * kBytes;
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 2))),
                              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + kBytes + 2)), 1);
  }
};
struct P8Codes : WholeBytes<P8Codes> {
  static constexpr int kScaleBlock = KvP8::kGroup;
  static const std::byte* scale_at(const std::byte* row, int head_dim, int block) { return row + head_dim + 2 * block; }
  static __m512i values(const std::byte* row, int d) { return _mm512_loadu_si512(row + d); }
};
struct I8rCodes : WholeBytes<I8rCodes> {
  static constexpr int kScaleBlock = 0;
  static const std::byte* scale_at(const std::byte* row, int head_dim, int) { return row + head_dim; }
  static __m512i values(const std::byte* row, int d) { return _mm512_loadu_si512(row + d); }
};

}  // namespace
}  // namespace ridge
