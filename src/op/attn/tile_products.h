// Work of a warp on a tile: scores, running softmax, weighted values. Device code of tile_attn_cuda.cu.
//
// A warp holds scores of 8 query heads x 32 positions: lane 4 r + c has head r and positions 8 (i/2) + 2 c + i%2, i
// 0..7. Queries and weights are the A operand: rows 0..7 are the heads, rows 8..15 the same heads once more with what
// the first rounding left, so that the second plane costs nothing. The cache is the B operand, in registers as it lies
// in memory or after a table look-up. Several packs of eight heads may meet the same operand: what it takes to load and
// look up is then shared.
#pragma once

#include "gpu/tensor.h"
#include "op/attn/pins_cuda.h"
#include "op/cache/rotate_warp.h"
#include "op/cache/tile_order.h"

namespace ridge::tiles {

inline constexpr int kHeads = 8;  // query heads of a pack: rows of a matmul
inline constexpr float kNever = -1e30f;
inline constexpr float kLog2E = 1.44269504f;

/// Queries and weights in two planes of integers: x = 128 hi + lo, |x| <= kPlaneTop.
inline constexpr float kPlaneTop = 16256;  // 127 * 128

constexpr bool is_half(TileKind kind) { return kind == TileKind::f16 || kind == TileKind::bf16; }
constexpr bool has_blocks(TileKind kind) { return kind == TileKind::int8_blocks || kind == TileKind::q4; }

/// Value of an integer of B of one, before its scale.
constexpr float unit_of(TileKind kind) {
  return kind == TileKind::rotor3   ? TileLevels3{}.unit
         : kind == TileKind::rotor4 ? TileLevels4{}.unit
         : kind == TileKind::q4     ? 1.0f / 16  // nibbles stand in the upper half of a byte
                                    : 1.0f;
}
/// rotor-4's magnitudes are integers and a half; one's complement makes -(m + 1) of m, so all values lack a half.
constexpr float offset_of(TileKind kind) { return kind == TileKind::rotor4 ? TileLevels4{}.offset : 0.0f; }

// --- Words of a tile ---

template <int kWords>
struct alignas(4 * kWords) Words {
  uint32_t at[kWords];
};

/// Words [first, first + kCount) of this lane; whole chunks.
template <TileKind kKind, int kDim, int kFirst, int kCount>
__device__ __forceinline__ void load_words(const std::byte* tile, int lane, uint32_t* words) {
  constexpr TileShape shape(kKind, kDim);
  constexpr int kChunk = shape.chunk_words;
  static_assert(kFirst % kChunk == 0 && kCount % kChunk == 0);
#pragma unroll
  for (int w = 0; w < kCount; w += kChunk) {
    const auto chunk = *reinterpret_cast<const Words<kChunk>*>(tile + ((kFirst + w) / kChunk * 32 + lane) * 4 * kChunk);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) words[w + i] = chunk.at[i];
  }
}

/// Four groups of a lane as B operands: integers in two words a group, f16 in four (two steps of depth 16).
template <TileKind kKind>
struct Quad {
  static constexpr int kWords = is_half(kKind) ? 4 : 2;
  uint32_t b[4][kWords];
};

constexpr uint32_t bytes4(int a, int b, int c, int d) {
  return uint32_t(a & 255) | uint32_t(b & 255) << 8 | uint32_t(c & 255) << 16 | uint32_t(d & 255) << 24;
}

/// Integers of rotor levels as bytes of look-ups, made once: an instruction holds one half as a constant, the other
/// needs a register (gpu::pinned).
struct RotorBytes {
  uint32_t low3, high3, low4, high4;

  __device__ __forceinline__ RotorBytes() {
    constexpr TileLevels3 three;
    constexpr TileLevels4 four;
    low3 = gpu::pinned(bytes4(-three.integer[3], -three.integer[2], -three.integer[1], -three.integer[0]));
    high3 = bytes4(three.integer[0], three.integer[1], three.integer[2], three.integer[3]);
    low4 = gpu::pinned(bytes4(four.integer[0], four.integer[1], four.integer[2], four.integer[3]));
    high4 = bytes4(four.integer[4], four.integer[5], four.integer[6], four.integer[7]);
  }
};

/// All groups of a tile, four at a time.
template <TileKind kKind, int kDim>
class Groups {
 public:
  Groups() = default;
  __device__ __forceinline__ Groups(const std::byte* tile, int lane) : tile_(tile), lane_(lane) {
    if constexpr (kKind == TileKind::rotor3) load_words<kKind, kDim, 0, kLaneWords>(tile, lane, words_);
  }

  /// Groups 4 kQuad .. 4 kQuad + 3.
  template <int kQuad>
  __device__ __forceinline__ Quad<kKind> quad(const RotorBytes& levels) const {
    Quad<kKind> q;
    if constexpr (is_half(kKind)) {
      load_words<kKind, kDim, 16 * kQuad, 16>(tile_, lane_, &q.b[0][0]);
    } else if constexpr (kKind == TileKind::int8_blocks || kKind == TileKind::int8_row) {
      load_words<kKind, kDim, 8 * kQuad, 8>(tile_, lane_, &q.b[0][0]);
    } else if constexpr (kKind == TileKind::q4) {
      uint32_t w[4];
      load_words<kKind, kDim, 4 * kQuad, 4>(tile_, lane_, w);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        q.b[t][0] = w[t] << 4 & 0xF0F0F0F0u;
        q.b[t][1] = w[t] & 0xF0F0F0F0u;
      }
    } else if constexpr (kKind == TileKind::rotor4) {
      uint32_t w[4];
      load_words<kKind, kDim, 4 * kQuad, 4>(tile_, lane_, w);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const uint32_t magnitude = w[t] & 0x77777777u, sign = w[t] >> 3 & 0x11111111u;
        q.b[t][0] = gpu::select_bytes(levels.low4, levels.high4, magnitude) ^ gpu::select_bytes(0xFF00u, 0, sign);
        q.b[t][1] =
            gpu::select_bytes(levels.low4, levels.high4, magnitude >> 16) ^ gpu::select_bytes(0xFF00u, 0, sign >> 16);
      }
    } else {
      const uint32_t w0 = words_[3 * kQuad], w1 = words_[3 * kQuad + 1], w2 = words_[3 * kQuad + 2];
      const uint32_t codes[4] = {w0 & 0x77777777u, w1 & 0x77777777u, w2 & 0x77777777u,
                                 (w0 >> 3 & 0x11111111u) | (w1 >> 2 & 0x22222222u) | (w2 >> 1 & 0x44444444u)};
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        q.b[t][0] = gpu::select_bytes(levels.low3, levels.high3, codes[t]);
        q.b[t][1] = gpu::select_bytes(levels.low3, levels.high3, codes[t] >> 16);
      }
    }
    return q;
  }

 private:
  static constexpr int kLaneWords = TileShape(kKind, kDim).lane_words;
  const std::byte* tile_ = nullptr;
  int lane_ = 0;
  uint32_t words_[kKind == TileKind::rotor3 ? kLaneWords : 1];
};

/// Calls f.template operator()<0>() .. <kCount - 1>().
template <int kCount, int kFrom = 0, class F>
__device__ __forceinline__ void unrolled(F&& f) {
  if constexpr (kFrom < kCount) {
    f.template operator()<kFrom>();
    unrolled<kCount, kFrom + 1>(f);
  }
}

/// The eight scales of block `block` that this lane meets, as floats.
template <TileKind kKind, int kDim>
__device__ __forceinline__ void load_scales(const std::byte* tile, int block, int c, float (&scales)[8]) {
  constexpr TileShape shape(kKind, kDim);
  const auto words = *reinterpret_cast<const Words<4>*>(tile + shape.code_bytes + 16 * (4 * block + c));
#pragma unroll
  for (int i = 0; i < 8; ++i) scales[i] = gpu::f16_to_float(uint16_t(words.at[i / 2] >> (16 * (i % 2))));
}

// --- Queries ---

/// A operands of a pack in shared memory, [step][lane][4 words]: integers (depth 32 a step), f16 and bfloats (16).
/// Packs follow each other.
template <int kDim>
struct Queries {
  static constexpr int kIntBytes = kDim / 32 * 512, kHalfBytes = kDim / 16 * 512;
  static constexpr int kBytes = kIntBytes + 2 * kHalfBytes + 64;
  std::byte* base;

  __device__ Queries pack(int p) const { return {base + p * kBytes}; }
  __device__ std::byte* ints() const { return base; }
  __device__ std::byte* halves(bool bf16) const { return base + kIntBytes + (bf16 ? kHalfBytes : 0); }
  __device__ float* scale() const { return reinterpret_cast<float*>(base + kIntBytes + 2 * kHalfBytes); }  // [8]
  __device__ float* sum() const { return scale() + 8; }                                                    // [8] of x

  __device__ __forceinline__ void step(const std::byte* fragments, int s, int lane, uint32_t (&a)[4]) const {
    const auto words = *reinterpret_cast<const Words<4>*>(fragments + (s * 32 + lane) * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = words.at[i];
  }
};

/// Forms of the queries that the kinds of K's tiles ask for.
struct QueryForms {
  bool ints, f16, bf16;
  bool sum;  ///< of the integers
};
__device__ __forceinline__ QueryForms query_forms(TileKind coded, TileKind recent, bool has_recent, bool has_sinks) {
  return {!is_half(coded) || (has_recent && !is_half(recent)),
          coded == TileKind::f16 || has_sinks || (has_recent && recent == TileKind::f16),
          coded == TileKind::bf16 || (has_recent && recent == TileKind::bf16), offset_of(coded) != 0};
}

/// x and y as f16, and what that leaves of them.
template <bool kBf16>
__device__ __forceinline__ Words<2> half_planes(float x, float y) {
  if constexpr (kBf16) {
    const uint32_t high = gpu::pack_bf16(x, y);
    return {
        {high, gpu::pack_bf16(x - gpu::bf16_to_float(uint16_t(high)), y - gpu::bf16_to_float(uint16_t(high >> 16)))}};
  } else {
    const uint32_t high = gpu::pack_f16(x, y);
    const float2 kept = gpu::unpack_f16(high);
    return {{high, gpu::pack_f16(x - kept.x, y - kept.y)}};
  }
}
/// Four values times to_integer as integers in two planes, bytes of a word each: 128 hi + lo, lo in 0 .. 127.
__device__ __forceinline__ Words<2> integer_planes(float a, float b, float c, float d, float to_integer) {
  // 1.5 * 2^23 + x: the low bits of the float are the integer nearest to x.
  const auto bits = [&](float x) { return __float_as_uint(fmaf(x, to_integer, 12582912.0f)); };
  const uint32_t p = gpu::select_bytes(bits(a), bits(b), 0x5410), q = gpu::select_bytes(bits(c), bits(d), 0x5410);
  return {{gpu::select_bytes(p >> 7, q >> 7, 0x6420), gpu::select_bytes(p & 0x007F007Fu, q & 0x007F007Fu, 0x6420)}};
}

/// Query of one head, in cache space and scaled, into its places. The lane has channels kPer lane + j.
template <int kDim>
__device__ __forceinline__ void put_query(const Queries<kDim>& to, int r, const float (&x)[kDim / 32],
                                          const QueryForms& forms, int lane) {
  constexpr int kPer = kDim / 32, kRun = kPer < 4 ? kPer : 4;  // channels that stand together
  if (forms.ints) {
    float top = 0;
#pragma unroll
    for (int j = 0; j < kPer; ++j) top = fmaxf(top, fabsf(x[j]));
    top = gpu::warp_max(top);
    const float to_integer = top > 0 ? __fdividef(kPlaneTop, top) : 0.0f;
    int sum = 0;
#pragma unroll
    for (int f = 0; f < kPer; f += kRun) {
      const int d = kPer * lane + f;
      std::byte* const at = to.ints() + (d / 32 * 32 + 4 * r + d % 32 / 8) * 16 + d % 8 / 4 * 8 + d % 4;
      const auto planes = kRun == 4 ? integer_planes(x[f], x[f + 1], x[f + kRun - 2], x[f + kRun - 1], to_integer)
                                    : integer_planes(x[f], x[f + 1], 0, 0, to_integer);
      if constexpr (kRun == 4) {
        *reinterpret_cast<Words<2>*>(at) = planes;
      } else {
        *reinterpret_cast<uint16_t*>(at) = uint16_t(planes.at[0]);
        *reinterpret_cast<uint16_t*>(at + 4) = uint16_t(planes.at[1]);
      }
      sum += 128 * __dp4a(int(planes.at[0]), 0x01010101, 0) + __dp4a(int(planes.at[1]), 0x01010101, 0);
    }
    if (forms.sum) sum = gpu::warp_sum(sum);
    if (lane == 0) to.scale()[r] = top * (1 / kPlaneTop), to.sum()[r] = float(sum);
  }
  const auto put_halves = [&]<bool kBf16>() {
#pragma unroll
    for (int f = 0; f < kPer; f += kRun) {
      const int d = kPer * lane + f;  // depth 16: two steps of four channels a lane
      std::byte* const at =
          to.halves(kBf16) + ((2 * (d / 32) + d % 8 / 4) * 32 + 4 * r + d % 32 / 8) * 16 + d % 4 / 2 * 8;
      const auto first = half_planes<kBf16>(x[f], x[f + 1]);
      if constexpr (kRun == 4) {
        const auto second = half_planes<kBf16>(x[f + 2], x[f + 3]);
        *reinterpret_cast<Words<4>*>(at) = {{first.at[0], first.at[1], second.at[0], second.at[1]}};
      } else {
        *reinterpret_cast<Words<2>*>(at) = first;
      }
    }
  };
  if (forms.f16) put_halves.template operator()<false>();
  if (forms.bf16) put_halves.template operator()<true>();
}

// --- One tile ---

/// Scores of the lane's eight positions in each of kTiles tiles, one after another in memory, in powers of two: tiles
/// of integers under one scale a position.
template <TileKind kKind, int kDim, int kTiles, int kPacks>
__device__ __forceinline__ void scores_together(const std::byte* tiles, const Queries<kDim>& queries,
                                                const RotorBytes& levels, int lane,
                                                float (&scores)[kPacks][kTiles][8]) {
  static_assert(!is_half(kKind) && !has_blocks(kKind));
  constexpr int kBytes = TileShape(kKind, kDim).bytes;
  Groups<kKind, kDim> groups[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) groups[n] = Groups<kKind, kDim>(tiles + n * kBytes, lane);
  int sums[kPacks][kTiles][4][4] = {};
  unrolled<kDim / 32>([&]<int kStep>() {
    uint32_t a[kPacks][4];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) queries.pack(p).step(queries.pack(p).ints(), kStep, lane, a[p]);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const Quad<kKind> keys = groups[n].template quad<kStep>(levels);
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int p = 0; p < kPacks; ++p) gpu::mma_s8(sums[p][n][t], a[p], keys.b[t][0], keys.b[t][1]);
    }
  });
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float k_scales[8];
    load_scales<kKind, kDim>(tiles + n * kBytes, 0, lane % 4, k_scales);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const float scale = queries.pack(p).scale()[lane / 4] * unit_of(kKind);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float sum = float(sums[p][n][i / 2][i % 2] * 128 + sums[p][n][i / 2][2 + i % 2]);
        if (offset_of(kKind) != 0) sum += queries.pack(p).sum()[lane / 4] * offset_of(kKind);
        scores[p][n][i] = sum * (k_scales[i] * scale);
      }
    }
  }
}

/// Scores of tiles of any kind, tile by tile where scores_together() does not serve.
template <TileKind kKind, int kDim, int kTiles, int kPacks>
__device__ __forceinline__ void tile_scores(const std::byte* tiles, const Queries<kDim>& queries,
                                            const RotorBytes& levels, int lane, float (&scores)[kPacks][kTiles][8]) {
  if constexpr (!is_half(kKind) && !has_blocks(kKind)) {
    scores_together<kKind>(tiles, queries, levels, lane, scores);
  } else {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const std::byte* const tile = tiles + n * TileShape(kKind, kDim).bytes;
      const Groups<kKind, kDim> groups(tile, lane);
      if constexpr (is_half(kKind)) {
        float sums[kPacks][4][4] = {};
        unrolled<kDim / 32>([&]<int kStep>() {
          const Quad<kKind> keys = groups.template quad<kStep>(levels);
#pragma unroll
          for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int p = 0; p < kPacks; ++p) {
              uint32_t a[4];
              const Queries<kDim> pack = queries.pack(p);
              pack.step(pack.halves(kKind == TileKind::bf16), 2 * kStep + half, lane, a);
#pragma unroll
              for (int t = 0; t < 4; ++t) {
                if constexpr (kKind == TileKind::f16)
                  gpu::mma_f16(sums[p][t], a, keys.b[t][2 * half], keys.b[t][2 * half + 1]);
                else gpu::mma_bf16(sums[p][t], a, keys.b[t][2 * half], keys.b[t][2 * half + 1]);
              }
            }
        });
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
#pragma unroll
          for (int i = 0; i < 8; ++i) scores[p][n][i] = sums[p][i / 2][i % 2] + sums[p][i / 2][2 + i % 2];
      } else {
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
#pragma unroll
          for (int i = 0; i < 8; ++i) scores[p][n][i] = 0;
        unrolled<kDim / 32>([&]<int kStep>() {
          const Quad<kKind> keys = groups.template quad<kStep>(levels);
          float k_scales[8];
          load_scales<kKind, kDim>(tile, kStep, lane % 4, k_scales);
#pragma unroll
          for (int p = 0; p < kPacks; ++p) {
            uint32_t a[4];
            queries.pack(p).step(queries.pack(p).ints(), kStep, lane, a);
#pragma unroll
            for (int t = 0; t < 4; ++t) {
              int sums[4] = {};
              gpu::mma_s8(sums, a, keys.b[t][0], keys.b[t][1]);
#pragma unroll
              for (int i = 2 * t; i < 2 * t + 2; ++i)
                scores[p][n][i] = fmaf(float(sums[i % 2] * 128 + sums[2 + i % 2]), k_scales[i], scores[p][n][i]);
            }
          }
        });
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
          const float scale = queries.pack(p).scale()[lane / 4] * unit_of(kKind);
#pragma unroll
          for (int i = 0; i < 8; ++i) scores[p][n][i] *= scale;
        }
      }
    }
  }
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(gpu::kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(gpu::kAllLanes, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(gpu::kAllLanes, x, 1);
  return x + __shfl_xor_sync(gpu::kAllLanes, x, 2);
}

/// An integer below 2^22 added to this has the bits of 1.5 * 2^23 + the integer.
inline constexpr int kAsFloat = 0x4B400000;
__device__ __forceinline__ float as_float(int sum) { return __int_as_float(sum) - 12582912.0f; }

/// Weights (negative under a negative scale) of kTiles tiles as A operands of integers under their own largest; returns
/// what an integer is worth. x = 128 hi + lo with lo in 0 .. 127.
template <int kTiles>
__device__ __forceinline__ float weight_planes(const float (&w)[kTiles][8], uint32_t (&a)[kTiles][4]) {
  float top = 0;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 8; ++i) top = fmaxf(top, fabsf(w[n][i]));
  top = quad_max(top);
  const float to_integer = top > 0 ? __fdividef(kPlaneTop, top) : 0.0f;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* const x = w[n] + 4 * half;
      const auto planes = integer_planes(x[0], x[1], x[2], x[3], to_integer);
      a[n][2 * half] = planes.at[0];
      a[n][2 * half + 1] = planes.at[1];
    }
  }
  return top * (1.0f / kPlaneTop);
}
/// Sum of the integers of weight_planes() over the tiles, for this lane's head.
template <int kTiles>
__device__ __forceinline__ float weight_total(const uint32_t (&a)[kTiles][4]) {
  int hi = 0, lo = 0;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    hi = __dp4a(int(a[n][0]), 0x01010101, __dp4a(int(a[n][2]), 0x01010101, hi));
    lo = __dp4a(int(a[n][1]), 0x01010101, __dp4a(int(a[n][3]), 0x01010101, lo));
  }
  return quad_sum(float(128 * hi + lo));
}

/// out[pack][e][i] += factor[pack] * sum over the positions of kTiles tiles, one after another in memory, of weight x
/// V, channels 8 e + 2 c + i of head r. At most four tiles: integer sums stay below 2^22.
template <TileKind kKind, int kDim, int kTiles, int kPacks>
__device__ __forceinline__ void tile_values(const std::byte* tiles, const RotorBytes& levels,
                                            const float (&weights)[kPacks][kTiles][8], const float (&factor)[kPacks],
                                            int lane, float (&out)[kPacks][kDim / 8][2]) {
  static_assert(kTiles <= 4);
  constexpr int kBytes = TileShape(kKind, kDim).bytes;
  if constexpr (is_half(kKind)) {
    static_assert(kTiles == 1);
    const Groups<kKind, kDim> groups(tiles, lane);
    uint32_t a[kPacks][2][4];  // [pack][step of 16 positions]
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = weights[pack][0][2 * i], y = weights[pack][0][2 * i + 1];
        uint32_t hi, lo;
        if constexpr (kKind == TileKind::f16) {
          hi = gpu::pack_f16(x, y);
          lo = gpu::pack_f16(x - gpu::f16_to_float(uint16_t(hi)), y - gpu::f16_to_float(uint16_t(hi >> 16)));
        } else {
          hi = gpu::pack_bf16(x, y);
          lo = gpu::pack_bf16(x - gpu::bf16_to_float(uint16_t(hi)), y - gpu::bf16_to_float(uint16_t(hi >> 16)));
        }
        a[pack][i / 2][i % 2 * 2] = hi;
        a[pack][i / 2][i % 2 * 2 + 1] = lo;
      }
    unrolled<kDim / 32>([&]<int kQuad>() {
      const Quad<kKind> values = groups.template quad<kQuad>(levels);
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int pack = 0; pack < kPacks; ++pack) {
          float sums[4] = {};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if constexpr (kKind == TileKind::f16)
              gpu::mma_f16(sums, a[pack][half], values.b[t][2 * half], values.b[t][2 * half + 1]);
            else gpu::mma_bf16(sums, a[pack][half], values.b[t][2 * half], values.b[t][2 * half + 1]);
          }
#pragma unroll
          for (int p = 0; p < 2; ++p) {
            float& to = out[pack][4 * kQuad + t][p];
            to = fmaf(sums[p] + sums[2 + p], factor[pack], to);
          }
        }
    });
  } else {
    Groups<kKind, kDim> groups[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) groups[n] = Groups<kKind, kDim>(tiles + n * kBytes, lane);
    uint32_t a[kPacks][kTiles][4];
    float worth[kPacks], missing[kPacks] = {};
    unrolled<kDim / 32>([&]<int kQuad>() {
      if (has_blocks(kKind) || kQuad == 0) {
        float scales[kTiles][8];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) load_scales<kKind, kDim>(tiles + n * kBytes, kQuad, lane % 4, scales[n]);
#pragma unroll
        for (int pack = 0; pack < kPacks; ++pack) {
          float scaled[kTiles][8];
#pragma unroll
          for (int n = 0; n < kTiles; ++n)
#pragma unroll
            for (int i = 0; i < 8; ++i) scaled[n][i] = scales[n][i] * weights[pack][n][i];
          worth[pack] = weight_planes<kTiles>(scaled, a[pack]) * factor[pack] * unit_of(kKind);
          if (offset_of(kKind) != 0) missing[pack] = weight_total<kTiles>(a[pack]) * offset_of(kKind);
        }
      }
      // Sums begin at the bits of 1.5 * 2^23, so that they are floats as they come: conversions would be the
      // bottleneck.
      int sums[kPacks][4][4];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const Quad<kKind> values = groups[n].template quad<kQuad>(levels);
#pragma unroll
        for (int t = 0; t < 4; ++t)
#pragma unroll
          for (int pack = 0; pack < kPacks; ++pack) {
            if (n == 0) gpu::mma_s8_from(kAsFloat, sums[pack][t], a[pack][n], values.b[t][0], values.b[t][1]);
            else gpu::mma_s8(sums[pack][t], a[pack][n], values.b[t][0], values.b[t][1]);
          }
      }
#pragma unroll
      for (int pack = 0; pack < kPacks; ++pack)
#pragma unroll
        for (int t = 0; t < 4; ++t)
#pragma unroll
          for (int p = 0; p < 2; ++p) {
            float& to = out[pack][4 * kQuad + t][p];
            to = fmaf(as_float(sums[pack][t][p]), 128 * worth[pack], to);
            float low = as_float(sums[pack][t][2 + p]);
            if (offset_of(kKind) != 0) low += missing[pack];
            to = fmaf(low, worth[pack], to);
          }
    });
  }
}

/// Running softmax of a warp: head r = lane / 4 of each pack.
template <int kDim, int kPacks>
struct State {
  float top[kPacks];         ///< what weights are relative to: the largest score so far, or up to kSlack below it
  float total[kPacks] = {};  ///< of the weights of this lane's positions
  float out[kPacks][kDim / 8][2] = {};

  /// Scores are powers of two; sums may grow by 2^kSlack before they are scaled down.
  static constexpr float kSlack = 8;

  __device__ State() {
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) top[pack] = kNever;
  }

  /// Takes the scores of kTiles tiles in, to which terms[n] is added where kHasTerms. A pack's scores become weights
  /// under their own largest, which is worth `worth`.
  template <bool kHasTerms, int kTiles>
  __device__ __forceinline__ void take(float (&scores)[kPacks][kTiles][8], const float (&terms)[kTiles],
                                       float (&worth)[kPacks]) {
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) worth[pack] = take_pack<kHasTerms>(pack, scores[pack], terms);
  }

 private:
  template <bool kHasTerms, int kTiles>
  __device__ __forceinline__ float take_pack(int pack, float (&scores)[kTiles][8], const float (&terms)[kTiles]) {
    float tile_top = kNever;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float own_top = scores[n][0];
#pragma unroll
      for (int i = 1; i < 8; ++i) own_top = fmaxf(own_top, scores[n][i]);
      tile_top = fmaxf(tile_top, kHasTerms ? own_top + terms[n] : own_top);
    }
    tile_top = quad_max(tile_top);
    if (__any_sync(gpu::kAllLanes, tile_top > top[pack] + kSlack)) {
      const float new_top = tile_top > top[pack] + kSlack ? tile_top : top[pack],
                  shrink = gpu::fast_exp2(top[pack] - new_top);
#pragma unroll
      for (int e = 0; e < kDim / 8; ++e) {
        out[pack][e][0] *= shrink;
        out[pack][e][1] *= shrink;
      }
      total[pack] *= shrink;
      top[pack] = new_top;
    }
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float own_top = kHasTerms ? tile_top - terms[n] : tile_top;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        scores[n][i] = gpu::fast_exp2(scores[n][i] - own_top);
        sum += scores[n][i];
      }
    }
    const float worth = gpu::fast_exp2(tile_top - top[pack]);
    total[pack] = fmaf(worth, sum, total[pack]);
    return worth;
  }
};

/// tile_scores() of a kind known at run time; every lane of the warp has the same.
template <int kDim, int kPacks>
__device__ __forceinline__ void tile_scores(TileKind kind, const std::byte* tile, const Queries<kDim>& queries,
                                            const RotorBytes& levels, int lane, float (&scores)[kPacks][1][8]) {
  switch (kind) {
    case TileKind::rows: return;
    case TileKind::f16: return tile_scores<TileKind::f16>(tile, queries, levels, lane, scores);
    case TileKind::bf16: return tile_scores<TileKind::bf16>(tile, queries, levels, lane, scores);
    case TileKind::int8_blocks: return tile_scores<TileKind::int8_blocks>(tile, queries, levels, lane, scores);
    case TileKind::int8_row: return tile_scores<TileKind::int8_row>(tile, queries, levels, lane, scores);
    case TileKind::q4: return tile_scores<TileKind::q4>(tile, queries, levels, lane, scores);
    case TileKind::rotor4: return tile_scores<TileKind::rotor4>(tile, queries, levels, lane, scores);
    case TileKind::rotor3: return tile_scores<TileKind::rotor3>(tile, queries, levels, lane, scores);
  }
}
template <int kDim, int kPacks>
__device__ __forceinline__ void tile_values(TileKind kind, const std::byte* tile, const RotorBytes& levels,
                                            const float (&weights)[kPacks][1][8], const float (&factor)[kPacks],
                                            int lane, float (&out)[kPacks][kDim / 8][2]) {
  switch (kind) {
    case TileKind::rows: return;
    case TileKind::f16: return tile_values<TileKind::f16, kDim>(tile, levels, weights, factor, lane, out);
    case TileKind::bf16: return tile_values<TileKind::bf16, kDim>(tile, levels, weights, factor, lane, out);
    case TileKind::int8_blocks:
      return tile_values<TileKind::int8_blocks, kDim>(tile, levels, weights, factor, lane, out);
    case TileKind::int8_row: return tile_values<TileKind::int8_row, kDim>(tile, levels, weights, factor, lane, out);
    case TileKind::q4: return tile_values<TileKind::q4, kDim>(tile, levels, weights, factor, lane, out);
    case TileKind::rotor4: return tile_values<TileKind::rotor4, kDim>(tile, levels, weights, factor, lane, out);
    case TileKind::rotor3: return tile_values<TileKind::rotor3, kDim>(tile, levels, weights, factor, lane, out);
  }
}

}  // namespace ridge::tiles
