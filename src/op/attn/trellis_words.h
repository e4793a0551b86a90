// Levels of rotor-3t (format/trellis.h) from the words of a tile (op/cache/tile_order.h). Device code.
//
// A lane's groups 4 q + t, q rising, are neighbours in the chain of every element, on either side: channels 32 apart.
// In front of quad 0 stand the last two quads of the chain's neighbours, one channel before.
#pragma once

#include "format/kv_rotor3t.h"
#include "gpu/tensor.h"
#include "op/cache/tile_order.h"

namespace ridge::trellis {

/// Codes of the four groups of a quad, one a nibble, of the three words that hold them.
struct Codes {
  uint32_t at[4] = {};

  Codes() = default;
  __device__ __forceinline__ Codes(uint32_t w0, uint32_t w1, uint32_t w2)
      : at{w0 & 0x77777777u, w1 & 0x77777777u, w2 & 0x77777777u,
           (w0 >> 3 & 0x11111111u) | (w1 >> 2 & 0x22222222u) | (w2 >> 1 & 0x44444444u)} {}
};

/// The tables as bytes that are not negative, whose sum is 128 more than the level.
struct Bytes {
  uint32_t own[2] = {}, before[2] = {};
};
constexpr Bytes bytes() {
  constexpr TrellisTables tables;
  int least = 0;
  for (const int x : tables.before) least = x < least ? x : least;
  Bytes made;
  for (int i = 0; i < 8; ++i) {
    made.own[i / 4] |= uint32_t(tables.own[i] + 128 + least) << (8 * (i % 4));
    made.before[i / 4] |= uint32_t(tables.before[i] - least) << (8 * (i % 4));
  }
  return made;
}

/// Levels + 128 of a group as bytes: elements 0 to 3, then 4 to 7. `before` and `first` are the codes one and two places
/// before in the chain.
__device__ __forceinline__ void levels(uint32_t codes, uint32_t before, uint32_t first, const uint32_t (&own_bytes)[2],
                                       const uint32_t (&before_bytes)[2], uint32_t (&out)[2]) {
  const uint32_t top = first >> 2 & 0x11111111u, own = codes ^ top * kFlipOwn, other = before ^ top * kFlipBefore;
#pragma unroll
  for (int i = 0; i < 2; ++i)  // no sum of bytes reaches 256
    out[i] = gpu::select_bytes(own_bytes[0], own_bytes[1], own >> (16 * i)) +
             gpu::select_bytes(before_bytes[0], before_bytes[1], other >> (16 * i));
}

/// What stands where the chains of a quad's elements begin: the codes one channel before those of `last`, zeros before
/// channel 0. All lanes.
template <KvSide kSide>
__device__ __forceinline__ Codes chain_starts(const Codes& last, int lane) {
  Codes out;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    if constexpr (kSide == KvSide::k) {  // channels are elements, then lanes
      const uint32_t left = __shfl_up_sync(gpu::kAllLanes, last.at[t], 1);
      out.at[t] = last.at[t] << 4 | (lane % 4 == 0 ? 0u : left >> 28);
    } else {  // channels are lanes, then groups
      const uint32_t sent = lane / 4 < 7 ? last.at[t] : t > 0 ? last.at[t > 0 ? t - 1 : 0] : 0u;
      out.at[t] = __shfl_sync(gpu::kAllLanes, sent, (lane + 28) % 32);
    }
  }
  return out;
}

}  // namespace ridge::trellis
