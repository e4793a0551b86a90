// Tiles of any kind as tiles of f16: what prefill attention feeds to tensor cores. Device code.
//
// The elements of a lane are the same in every kind (tile_order.h), so a lane turns its own codes: four groups at a
// time, 16 bytes of f16 each.
#pragma once

#include <type_traits>

#include "format/kv_rotor.h"
#include "op/attn/tile_products.h"
#include "op/cache/rotate_warp.h"

namespace ridge::prefill {

/// F16 of value 1024 + the byte, of four bytes below 256: pairs (0, 1) and (2, 3).
struct BytePairs {
  uint32_t pair[2];
};
__device__ __forceinline__ BytePairs above_1024(uint32_t bytes) {
  return {gpu::select_bytes(bytes, 0x64646464u, 0x4140), gpu::select_bytes(bytes, 0x64646464u, 0x4342)};
}
constexpr uint32_t half_pair(uint16_t half) { return uint32_t(half) << 16 | half; }
inline constexpr uint32_t k1152 = half_pair(0x6480), k1032 = half_pair(0x6408);

/// The low or the high bytes of the f16 of rotor levels, by code: bytes 0-3 and 4-7 of a look-up.
template <int kBits>
struct LevelBytes {
  uint32_t low[2] = {}, high[2] = {};
};
/// Bytes of eight levels: rotor-3's in rising order, rotor-4's magnitudes in rising order.
template <int kBits>
constexpr LevelBytes<kBits> level_bytes() {
  LevelBytes<kBits> bytes;
  constexpr auto levels = RotorCodes<kBits>::kLevels;
  for (int i = 0; i < 8; ++i) {
    const uint16_t half = f32_to_f16(levels.at[kBits == 3 ? i : 8 + i]);
    bytes.low[i / 4] |= uint32_t(half & 0xFF) << (8 * (i % 4));
    bytes.high[i / 4] |= uint32_t(half >> 8) << (8 * (i % 4));
  }
  return bytes;
}
/// Four f16 of low and high bytes.
__device__ __forceinline__ void join_bytes(uint32_t low, uint32_t high, uint32_t* pairs) {
  pairs[0] = gpu::select_bytes(low, high, 0x5140);
  pairs[1] = gpu::select_bytes(low, high, 0x7362);
}

/// The codes of a group before their scale: four pairs of f16. `zero` is 0: the first words of levels plus it are
/// operands.
template <TileKind kKind>
__device__ __forceinline__ void group_f16(const uint32_t* words, uint32_t zero, uint32_t (&pairs)[4]) {
  if constexpr (kKind == TileKind::f16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = words[i];
  } else if constexpr (kKind == TileKind::bf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs[i] = gpu::pack_f16(__uint_as_float(words[i] << 16), __uint_as_float(words[i] & 0xFFFF0000u));
  } else if constexpr (kKind == TileKind::int8_blocks || kKind == TileKind::int8_row) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const BytePairs bytes = above_1024(words[w] ^ 0x80808080u);
#pragma unroll
      for (int i = 0; i < 2; ++i) pairs[2 * w + i] = gpu::sub_f16x2(bytes.pair[i], k1152);
    }
  } else if constexpr (kKind == TileKind::q4) {
    const uint32_t codes = words[0] ^ 0x88888888u;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const BytePairs bytes = above_1024(codes >> (4 * w) & 0x0F0F0F0Fu);
#pragma unroll
      for (int i = 0; i < 2; ++i) pairs[2 * w + i] = gpu::sub_f16x2(bytes.pair[i], k1032);
    }
  } else if constexpr (kKind == TileKind::rotor4) {
    constexpr LevelBytes<4> l = level_bytes<4>();
    const uint32_t low = l.low[0] + zero, high_of = l.high[0] + zero;
    const uint32_t magnitude = words[0] & 0x77777777u, sign = words[0] >> 3 & 0x11111111u;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const uint32_t rank = magnitude >> (16 * w);
      const uint32_t high =
          gpu::select_bytes(high_of, l.high[1], rank) | gpu::select_bytes(0x8000u, 0, sign >> (16 * w));
      join_bytes(gpu::select_bytes(low, l.low[1], rank), high, pairs + 2 * w);
    }
  } else {
    constexpr LevelBytes<3> l = level_bytes<3>();
    const uint32_t low = l.low[0] + zero, high = l.high[0] + zero;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const uint32_t codes = words[0] >> (16 * w);
      join_bytes(gpu::select_bytes(low, l.low[1], codes), gpu::select_bytes(high, l.high[1], codes), pairs + 2 * w);
    }
  }
}

/// Groups 4 quad .. 4 quad + 3 of a lane as words of group_f16().
template <TileKind kKind, int kDim>
struct QuadWords {
  static constexpr int kBits = TileShape(kKind, kDim).bits;
  static constexpr int kOfGroup = kKind == TileKind::rotor3 ? 1 : kBits / 4;
  uint32_t words[4][kOfGroup];

  __device__ __forceinline__ QuadWords(const std::byte* tile, int quad, int lane) {
    if constexpr (kKind == TileKind::rotor3) {
      constexpr TileShape shape(kKind, kDim);
      uint32_t w[3];
#pragma unroll
      for (int b = 0; b < 3; ++b) w[b] = *reinterpret_cast<const uint32_t*>(tile + shape.word_at(lane, 3 * quad + b));
#pragma unroll
      for (int t = 0; t < 3; ++t) words[t][0] = w[t] & 0x77777777u;
      words[3][0] = (w[0] >> 3 & 0x11111111u) | (w[1] >> 2 & 0x22222222u) | (w[2] >> 1 & 0x44444444u);
    } else {
      // kBits words a quad, in chunks of 4.
#pragma unroll
      for (int w = 0; w < kBits; w += 4) {
        const auto chunk =
            *reinterpret_cast<const tiles::Words<4>*>(tile + (((kBits * quad + w) / 4) * 32 + lane) * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) words[(w + i) / kOfGroup][(w + i) % kOfGroup] = chunk.at[i];
      }
    }
  }
};

/// What a lane turns of a tile to f16, four groups at a time. `tile` is shared. `zero` is 0: where the compiler does
/// not know that, it keeps the levels in registers, and a loop over quads is short; else they are constants.
template <TileKind kKind, int kDim, bool kIsK>
class TileTurn {
 public:
  __device__ __forceinline__ TileTurn(const std::byte* tile, int lane, uint32_t zero)
      : tile_(tile), lane_(lane), zero_(zero) {
    if constexpr (!tiles::has_blocks(kKind)) load_scales(0);
  }
  /// What a tile of kind f16 holds for groups 4 quad .. 4 quad + 3, group 4 quad + t at place(t). Of K `centre` [kDim]
  /// f16, shared, is added; null: nothing is.
  template <class Place>
  __device__ __forceinline__ void quad(int quad, const uint4* centre, const Place& place) {
    const QuadWords<kKind, kDim> codes(tile_, quad, lane_);
    if constexpr (tiles::has_blocks(kKind)) load_scales(quad);
    uint32_t added[4] = {0x80008000u, 0x80008000u, 0x80008000u, 0x80008000u};  // of the lane's eight channels
    if (kIsK && centre) {
      const uint4 words = centre[4 * quad + lane_ % 4];
      added[0] = words.x, added[1] = words.y, added[2] = words.z, added[3] = words.w;
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      uint32_t pairs[4];
      group_f16<kKind>(codes.words[t], zero_, pairs);
      constexpr uint32_t kOne = half_pair(0x3C00);
      if (!tiles::is_half(kKind) || (kIsK && centre))
#pragma unroll
        for (int i = 0; i < 4; ++i)
          pairs[i] = gpu::fma_f16x2(pairs[i], tiles::is_half(kKind) ? kOne : scales_[kIsK ? t : i], added[i]);
      *reinterpret_cast<uint4*>(place(t)) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }

 private:
  __device__ __forceinline__ void load_scales(int block) {
    if constexpr (!tiles::is_half(kKind)) {
      constexpr TileShape shape(kKind, kDim);
      const int c = kIsK ? lane_ / 8 : lane_ % 4;
      const auto words = *reinterpret_cast<const tiles::Words<4>*>(tile_ + shape.code_bytes + 16 * (4 * block + c));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scales_[i] = !kIsK           ? words.at[i]
                     : lane_ / 4 % 2 ? gpu::select_bytes(words.at[i], 0, 0x3232)
                                     : gpu::select_bytes(words.at[i], 0, 0x1010);
    }
  }

  const std::byte* tile_;
  int lane_;
  uint32_t zero_;
  uint32_t scales_[4] = {};  // K: of four groups' positions, twice; V: of the pairs of positions
};

/// Calls turn() with the kind as a constant; tiles of rows have no order for tensor cores.
template <class Turn>
__device__ __forceinline__ void turn_kind(TileKind kind, const Turn& turn) {
  switch (kind) {
    case TileKind::rows: return;
    case TileKind::f16: return turn(std::integral_constant<TileKind, TileKind::f16>());
    case TileKind::bf16: return turn(std::integral_constant<TileKind, TileKind::bf16>());
    case TileKind::int8_blocks: return turn(std::integral_constant<TileKind, TileKind::int8_blocks>());
    case TileKind::int8_row: return turn(std::integral_constant<TileKind, TileKind::int8_row>());
    case TileKind::q4: return turn(std::integral_constant<TileKind, TileKind::q4>());
    case TileKind::rotor4: return turn(std::integral_constant<TileKind, TileKind::rotor4>());
    case TileKind::rotor3: return turn(std::integral_constant<TileKind, TileKind::rotor3>());
  }
}

/// R times a centre of K turned to a tile, as f16: what the tile's keys are stored without; where K does not turn there
/// is none. A warp; lane has channels lane + 32 j. What is read of a tile is loaded apart, so that other work can come
/// between.
template <int kDim>
class TurnedCentre {
 public:
  __device__ __forceinline__ TurnedCentre(const float* centre, const CentreTurn& turn, const RotationView& rotation,
                                          int lane)
      : turn_(turn), rotation_(rotation), table_(rotation, lane), lane_(lane) {
    const int n = turn.n_pairs;
    if (n == 0) return;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int d = lane + 32 * j;
      own_[j] = centre[d];
      other_[j] = centre[turn.halves ? d < n ? d + n : d - n < n ? d - n : d : d ^ 1];
    }
  }
  __device__ __forceinline__ void load(int tile) {
    const float* const angles = turn_.tile(tile);
    const int n = turn_.n_pairs;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {  // of channels without a pair those of any
      const int d = lane_ + 32 * j, pair = min(turn_.halves ? d < n ? d : d - n : d / 2, n - 1);
      c_[j] = angles[pair];
      s_[j] = angles[n + pair];
    }
  }
  __device__ __forceinline__ void put(uint4* to) const {
    const int n = turn_.n_pairs;
    float x[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int d = lane_ + 32 * j;
      const float turned = own_[j] * c_[j] + ((turn_.halves ? d < n : d % 2 == 0) ? -other_[j] : other_[j]) * s_[j];
      x[j] = d < 2 * n ? turned : 0;  // softmax does not see what is the same in all tiles
    }
    rotate_row(rotation_, table_, true, lane_, x);
#pragma unroll
    for (int j = 0; j < kPer; ++j) reinterpret_cast<uint16_t*>(to)[lane_ + 32 * j] = gpu::float_to_f16(x[j]);
  }

 private:
  static constexpr int kPer = kDim / 32;
  const CentreTurn& turn_;
  const RotationView& rotation_;
  const RotationRow<kPer> table_;
  const int lane_;
  float own_[kPer] = {}, other_[kPer] = {}, c_[kPer] = {}, s_[kPer] = {};
};

}  // namespace ridge::prefill
