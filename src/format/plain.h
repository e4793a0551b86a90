// f32, f16, bf16: one element per block, no scale. Rounding on encode is to nearest, ties to even.
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
