// Rows that a warp writes to tiles of other kinds than rotor's. Device code for *_exact.cu.
#pragma once

#include "op/cache/round_warp.h"

namespace ridge {

/// Largest value of the warp's lanes. No value is negative, so that their bits have the order of the values.
__device__ inline float top_of_warp(float value) {
  return __uint_as_float(__reduce_max_sync(gpu::kAllLanes, __float_as_uint(value)));
}

/// Writes a row in cache space to place `p` of a tile; its values are within the range of f16 (bf16: of bf16). All
/// lanes; lane has channels lane + 32 j, which have the same place in groups four apart. With `many` other warps may
/// write nibbles of the same bytes. Returns the square of what coding took from the lane's values.
template <int kPer>
__device__ __forceinline__ float write_row(TileKind kind, KvSide side, bool many, int p, int lane,
                                           const float (&x)[kPer], std::byte* tile) {
  const bool q4 = kind == TileKind::q4;
  const int bits = kind == TileKind::f16 || kind == TileKind::bf16 ? 16 : q4 ? 4 : 8;
  // tile_place() of channel `lane`, without a division. A group of a lane is `bits` bytes; 16 bytes a lane stand
  // together, 512 a warp.
  const int r = side == KvSide::k ? p & 7 : lane & 7, c = side == KvSide::k ? lane >> 3 : (p & 7) >> 1;
  const int group = side == KvSide::k ? p >> 3 : lane >> 3, i = side == KvSide::k ? lane & 7 : (p >> 3) * 2 + (p & 1);
  const int byte = group * bits + (q4 ? i & 3 : i * bits >> 3), step = 128 * bits;
  std::byte* const to = tile + (byte >> 4) * 512 + (4 * r + c) * 16 + (byte & 15);
  float error2 = 0;
  const auto lost = [&](float value, float kept) { error2 += (value - kept) * (value - kept); };
  if (bits == 16) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const uint16_t half = kind == TileKind::f16 ? gpu::float_to_f16(x[j]) : gpu::float_to_bf16(x[j]);
      tile_rows::store16(to + j * step, half);
      lost(x[j], kind == TileKind::f16 ? gpu::f16_to_float(half) : gpu::bf16_to_float(half));
    }
    return error2;
  }

  uint32_t shared[kPer];  // the other nibble of V's bytes is another position's
  if (q4 && side == KvSide::v && !many)
#pragma unroll
    for (int j = 0; j < kPer; ++j) shared[j] = uint32_t(to[j * step]);
  float top[kPer], all = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) all = fmaxf(all, fabsf(x[j]));
#pragma unroll
  for (int j = 0; j < kPer; ++j) top[j] = top_of_warp(kind == TileKind::int8_row ? all : fabsf(x[j]));
  if (q4) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {  // the first of the values of largest magnitude
      const unsigned at_top = __ballot_sync(gpu::kAllLanes, fabsf(x[j]) == top[j]);
      const float found = __shfl_sync(gpu::kAllLanes, x[j], __ffs(int(at_top)) - 1);
      top[j] = top[j] > 0 ? found : 0.0f;
    }
  }
  // A block is one element of every lane. Lanes work out the scale of one each, of block lane % kPer.
#pragma unroll
  for (int half = 1; half < kPer; half *= 2)
#pragma unroll
    for (int j = 0; j < kPer; j += 2 * half) top[j] = lane & half ? top[j + half] : top[j];
  const float scale = q4 ? top[0] / -8.0f : top[0] / 127.0f, inverse = fabsf(scale) > 1e-38f ? 1.0f / scale : 0.0f;
  const uint16_t half_scale = gpu::float_to_f16(scale);
  const float kept_scale = gpu::f16_to_float(half_scale);
  if (lane < (kind == TileKind::int8_row ? 1 : kPer))
    tile_rows::store16(tile + kPer * step + 2 * ((4 * lane + ((p & 7) >> 1)) * 8 + (p >> 3) * 2 + (p & 1)), half_scale);
  if (!q4) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int code = int8_code(x[j], __shfl_sync(gpu::kAllLanes, inverse, j));
      to[j * step] = std::byte(code);
      lost(x[j], float(code) * __shfl_sync(gpu::kAllLanes, kept_scale, j));
    }
    return error2;
  }
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const float per_step = __shfl_sync(gpu::kAllLanes, inverse, j);
    const int code = min(max(int(x[j] * per_step + 8.5f), 0), 15);
    const uint32_t nibble = uint32_t(code) ^ 8u;
    lost(x[j], float(code - 8) * __shfl_sync(gpu::kAllLanes, kept_scale, j));
    const int shift = i & 4;
    if (side == KvSide::k) {  // bytes hold channels i and i + 4 of this row
      const uint32_t upper = __shfl_down_sync(gpu::kAllLanes, nibble, 4);
      if (i < 4) to[j * step] = std::byte(nibble | upper << 4);
    } else if (many) {
      auto* const word = reinterpret_cast<uint32_t*>(to + j * step - (byte & 3));
      const int at = 8 * (byte & 3) + shift;
      atomicAnd(word, ~(15u << at));
      atomicOr(word, nibble << at);
    } else {
      to[j * step] = std::byte((shared[j] & ~(15u << shift)) | nibble << shift);
    }
  }
  return error2;
}

}  // namespace ridge
