// Helpers that several weight formats share: rounding any float to a code, and the places of 5-bit codes.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace ridge {

/// `x` rounded to the nearest integer and clamped to [low, high]; NaN gives low.
inline int nearest_code(float x, int low, int high) {
  if (!(x > float(low))) return low;
  if (x >= float(high)) return high;
  return int(x - float(low) + 0.5f) + low;
}

/// Weights of a part. Formats with longer groups have decode_part(block, part, out), which writes weights 32 part to
/// 32 part + 31 of a block to out[32], so that several threads can decode a block.
inline constexpr int kDecodePart = 32;

/// The whole block by its parts.
template <class Format, class Block>
RIDGE_HD inline void decode_parts(const Block& block, float* out) {
  for (int part = 0; part < Format::kGroup / kDecodePart; ++part)
    Format::decode_part(block, part, out + kDecodePart * part);
}

/// The 5-bit code of weight i of 32: its low four bits are the low (i < 16) or high nibble of q[i % 16], bit 4 is bit
/// i % 8 of high[i / 8].
RIDGE_HD inline int five_bit_code(const uint8_t* q, const uint8_t* high, int i) {
  return (i < 16 ? q[i] & 0xF : q[i - 16] >> 4) | (high[i / 8] >> (i % 8) & 1) << 4;
}
/// Stores the 5-bit code of weight i of 32 in bytes that are zero so far, laid out as five_bit_code() reads them.
inline void put_five_bit_code(int code, int i, uint8_t* q, uint8_t* high) {
  q[i % 16] |= uint8_t((code & 0xF) << (i < 16 ? 0 : 4));
  high[i / 8] |= uint8_t(code >> 4 << (i % 8));
}

/// 1 / scale, or 0 where the reciprocal would not be a finite float.
inline float safe_inverse(float scale) { return scale > 1e-38f || scale < -1e-38f ? 1.0f / scale : 0.0f; }

}  // namespace ridge
