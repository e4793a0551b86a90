// The 32 bytes of op/simd/bytes_avx2.h in two NEON registers. Include only from op/simd/neon.h.
#pragma once

#include <arm_neon.h>

#include <cstdint>

/// As on x86, for a pair of registers.
#define RIDGE_KEEP(pair) asm("" : "+w"((pair).low), "+w"((pair).high))

namespace ridge {
namespace {

struct Bytes {
  uint8x16_t low, high;
};

inline float f16_to_float(uint16_t half) {
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0);
}
inline Bytes bytes32(const void* p) {
  const auto* const at = static_cast<const uint8_t*>(p);
  return {vld1q_u8(at), vld1q_u8(at + 16)};
}
inline void store_bytes(void* p, Bytes a) {
  vst1q_u8(static_cast<uint8_t*>(p), a.low);
  vst1q_u8(static_cast<uint8_t*>(p) + 16, a.high);
}

inline Bytes low_bits(Bytes a, int mask) {
  const uint8x16_t m = vdupq_n_u8(uint8_t(mask));
  return {vandq_u8(a.low, m), vandq_u8(a.high, m)};
}
inline Bytes either(Bytes a, Bytes b) { return {vorrq_u8(a.low, b.low), vorrq_u8(a.high, b.high)}; }
inline Bytes minus(Bytes a, int value) {
  const uint8x16_t v = vdupq_n_u8(uint8_t(value));
  return {vsubq_u8(a.low, v), vsubq_u8(a.high, v)};
}
/// Every byte moved by `bits`, zeros coming in.
inline Bytes moved_up(Bytes a, int bits) {
  const int8x16_t by = vdupq_n_s8(int8_t(bits));
  return {vshlq_u8(a.low, by), vshlq_u8(a.high, by)};
}
inline Bytes moved_down(Bytes a, int bits) { return moved_up(a, -bits); }
/// `value` in the bytes that have the bit of `mask`, 0 in the others.
inline Bytes where_bit(Bytes a, int mask, int value) {
  const uint8x16_t bit = vdupq_n_u8(uint8_t(mask));
  return low_bits({vtstq_u8(a.low, bit), vtstq_u8(a.high, bit)}, value);
}

/// 32 codes from 16 bytes: low nibbles, then high nibbles.
inline Bytes nibbles32(const uint8_t* q) {
  const uint8x16_t both = vld1q_u8(q);
  return {vandq_u8(both, vdupq_n_u8(0xF)), vshrq_n_u8(both, 4)};
}
/// 32 codes from 16 bytes: the low and the high nibble of each are neighbours.
inline Bytes neighbours32(const uint8_t* q) {
  const Bytes codes = nibbles32(q);
  return {vzip1q_u8(codes.low, codes.high), vzip2q_u8(codes.low, codes.high)};
}
/// 16 in byte i where bit i of `bits` is set.
inline Bytes fifth_bits(const uint8_t* bits) {
  const uint8x16_t each = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  const Bytes spread{vcombine_u8(vdup_n_u8(bits[0]), vdup_n_u8(bits[1])),
                     vcombine_u8(vdup_n_u8(bits[2]), vdup_n_u8(bits[3]))};
  return low_bits({vtstq_u8(spread.low, each), vtstq_u8(spread.high, each)}, 16);
}
/// The bytes of a table of 16 for 32 codes below 16.
inline Bytes looked_up(const int8_t* table, Bytes codes) {
  const uint8x16_t t = vreinterpretq_u8_s8(vld1q_s8(table));
  return {vqtbl1q_u8(t, codes.low), vqtbl1q_u8(t, codes.high)};
}

}  // namespace
}  // namespace ridge
