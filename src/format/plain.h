// f32, f16, bf16: one little-endian element per block, no scale.
//
// f32 is IEEE binary32 and kept as it is. f16 is IEEE binary16 (sign, 5 bits of exponent, 10 of fraction), bf16 the
// upper 16 bits of a binary32 (sign, 8 bits of exponent, 7 of fraction). The encoder rounds to nearest, ties to even:
// |error| <= 2^-11 |w| for f16, 2^-25 where it is subnormal (|w| < 2^-14); |error| <= 2^-8 |w| for bf16, 2^-134 where
// it is subnormal (|w| < 2^-126). Weights that round to infinity (65520 and more in f16) are refused by encode_rows().
// Source: IEEE 754; GGUF types F32, F16, BF16.
#pragma once

#include "base/f16.h"

namespace ridge {

struct F32 {
  using Block = float;
  static constexpr const char* kName = "f32";
  static constexpr const char* kDtype = "F32";
  static constexpr int kGgufType = 0;
  static constexpr int kGroup = 1;
  RIDGE_HD static void decode(const Block& block, float* out) { *out = block; }
  RIDGE_HD static void encode(const float* in, Block& block) { block = *in; }
};

struct F16 {
  using Block = uint16_t;
  static constexpr const char* kName = "f16";
  static constexpr const char* kDtype = "F16";
  static constexpr int kGgufType = 1;
  static constexpr int kGroup = 1;
  RIDGE_HD static void decode(const Block& block, float* out) { *out = f16_to_f32(block); }
  RIDGE_HD static void encode(const float* in, Block& block) { block = f32_to_f16(*in); }
};

struct BF16 {
  using Block = uint16_t;
  static constexpr const char* kName = "bf16";
  static constexpr const char* kDtype = "BF16";
  static constexpr int kGgufType = 30;
  static constexpr int kGroup = 1;
  RIDGE_HD static void decode(const Block& block, float* out) { *out = bf16_to_f32(block); }
  RIDGE_HD static void encode(const float* in, Block& block) { block = f32_to_bf16(*in); }
};

}  // namespace ridge
