// Rounding of a row that a warp holds in registers, as the encoders of exact rows do it. Device code for *_exact.cu.
#pragma once

#include "gpu/tensor.h"
#include "op/cache/tile_rows.h"

namespace ridge {

/// The code of a value and the scale it is under, as the encoders of int8 (rule absmax) and q4_0 have them.
struct Scaled {
  float inverse;
  uint16_t scale;
};
__device__ inline Scaled int8_scale(float top) {
  const float scale = top / 127.0f;
  return {scale > 1e-38f ? 1.0f / scale : 0.0f, gpu::float_to_f16(scale)};
}
__device__ inline int int8_code(float x, float inverse) {
  return int(fminf(fmaxf(roundf(x * inverse), -127.0f), 127.0f));
}

/// Values beyond what `kind` can hold become the nearest it can, NaN becomes 0. Returns how many of the lane's did.
template <int kPer>
__device__ __forceinline__ int saturate(TileKind kind, float (&x)[kPer]) {
  const float most = kind == TileKind::bf16 ? KvBf16::kMax : kMaxF16;
  bool within = true;
#pragma unroll
  for (int j = 0; j < kPer; ++j) within = within && fabsf(x[j]) <= most;
  int saturated = 0;
  if (__builtin_expect(!within, 0)) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      if (fabsf(x[j]) <= most) continue;
      x[j] = isnan(x[j]) ? 0.0f : copysignf(most, x[j]);
      ++saturated;
    }
  }
  return saturated;
}

/// Rounds a row to the values that it reads as when kept as `kind`: f16, bf16 or int8_row. Returns how many of the
/// lane's values saturated.
template <int kPer>
__device__ int round_as(TileKind kind, float (&x)[kPer]) {
  const int saturated = saturate<kPer>(kind, x);
  if (kind == TileKind::f16) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = gpu::f16_to_float(gpu::float_to_f16(x[j]));
    return saturated;
  }
  float top = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) top = fmaxf(top, fabsf(x[j]));
  const Scaled s = int8_scale(gpu::warp_max(top));
#pragma unroll
  for (int j = 0; j < kPer; ++j) x[j] = float(int8_code(x[j], s.inverse)) * gpu::f16_to_float(s.scale);
  return saturated;
}

}  // namespace ridge
