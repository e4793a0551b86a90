// KV row decoders for NEON.
#include "op/simd/neon.h"
// The Simd struct above must come first.
#include "op/attn/rows_simd.h"
#include "op/simd/decode.h"

namespace ridge {
namespace {

/// The floats of a table of 8 or of 16 at four indices: a float's bytes are looked up one by one.
inline float32x4_t floats_at(const uint8x16x2_t& table, uint8x16_t bytes) {
  return vreinterpretq_f32_u8(vqtbl2q_u8(table, bytes));
}
inline float32x4_t floats_at(const uint8x16x4_t& table, uint8x16_t bytes) {
  return vreinterpretq_f32_u8(vqtbl4q_u8(table, bytes));
}
inline uint8x16x2_t table_of(const float (&levels)[8]) {
  const Bytes all = bytes32(levels);
  return {{all.low, all.high}};
}
inline uint8x16x4_t table_of(const float (&levels)[16]) {
  const Bytes first = bytes32(levels), second = bytes32(levels + 8);
  return {{first.low, first.high, second.low, second.high}};
}

/// Eight codes sit in kBits bytes: four lanes are shifted to theirs and look up float levels.
template <class Format, class Codes, int kBits>
void decode_rows_levels(const KvFormat&, const KvCoding& coding, const std::byte* rows, int64_t row_bytes, int count,
                        int head_dim, float* out) {
  alignas(16) static constexpr int32_t kShift[4] = {0, -kBits, -2 * kBits, -3 * kBits};
  const int32x4_t low = vld1q_s32(kShift), high = vsubq_s32(low, vdupq_n_s32(4 * kBits));
  const auto table = table_of(Codes::kLevels.at);
  const auto levels = [&](uint32x4_t word, int32x4_t shift) {
    const uint32x4_t index = vandq_u32(vshlq_u32(word, shift), vdupq_n_u32((1 << kBits) - 1));
    const uint32x4_t bytes = vmlaq_n_u32(vdupq_n_u32(0x03020100), index, 0x04040404);
    return floats_at(table, vreinterpretq_u8_u32(bytes));
  };
  for (int i = 0; i < count; ++i, rows += row_bytes, out += head_dim) {
    const Simd::F scale = Simd::set1(Format::row_scale(rows, head_dim, coding));
    for (int d = 0; d < head_dim; d += 8) {
      uint32_t word;  // of 3 bits: one byte past the codes is the scale, the next row or the slack
      __builtin_memcpy(&word, rows + kBits * (d / 8), 4);
      const uint32x4_t all = vdupq_n_u32(word);
      Simd::store(out + d, Simd::mul({levels(all, low), levels(all, high)}, scale));
    }
  }
}

void decode_rows_q4_0(const KvFormat&, const KvCoding&, const std::byte* rows, int64_t row_bytes, int count,
                      int head_dim, float* out) {
  for (int i = 0; i < count; ++i) decode_row<Q4_0>(rows + i * row_bytes, head_dim, out + int64_t(i) * head_dim);
}

}  // namespace

DecodeRows decode_rows_neon(const KvFormat& format, int head_dim) {
  if (const DecodeRows common = common_decoder(format, head_dim)) return common;
  if (format.name == KvQ4_0::kName) return decode_rows_q4_0;
  if (format.name == KvRotor4::kName) return decode_rows_levels<KvRotor4, KvRotor4, 4>;
  if (format.name == KvRotor3::kName) return decode_rows_levels<KvRotor3, RotorCodes<3>, 3>;
  if (format.name == KvRotor3s::kName) return decode_rows_levels<KvRotor3s, RotorCodes<3>, 3>;
  if (format.name == KvRotor3u::kName) return decode_rows_levels<KvRotor3u, RotorCodes<3>, 3>;
  return decode_rows_generic;
}

}  // namespace ridge
