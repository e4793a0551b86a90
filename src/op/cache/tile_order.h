// How the device holds cached rows: tiles of 32 positions of one kv head, in the order in which tensor cores take them.
//
// A tile is the codes of its 32 rows, then their scales; it has exactly the bits of the format. Lane = 4 r + c (r 0..7,
// c 0..3) of a warp multiplies these elements, eight to a group, groups e = 0 .. D/8 - 1, elements i = 0..7 of each:
//
//   K  position 8 (e%4) + r          channel 32 (e/4) + 8 c + i        keys are columns of B, channels its depth
//   V  position 8 (i/2) + 2 c + i%2  channel 8 e + r                   channels are columns of B, positions its depth
//
// A lane's groups are consecutive bits of its words: f16 and bf16, 4 words a group, two elements each; int8, 2 words;
// 4-bit codes, 1 word; 3-bit codes, 3 words for every four groups. Words w of all lanes stand together in chunks of 4
// (2 where a lane has no multiple of 4 words), so that a warp reads 16 bytes a lane in one piece:
//   byte(w, lane) = ((w / chunk) * 32 + lane) * 4 chunk + 4 (w % chunk)
//
// Codes inside a group, element i:
//   f16, bf16    half i
//   int8         byte i
//   q4           low nibble of byte i (i < 4) or high nibble of byte i - 4: nibble = code - 8 in two's complement
//   rotor-4      nibble i: bit 3 is the sign, bits 0-2 the rank of the magnitude
//   rotor-3      code in nibble i of the group's word 0, 1 or 2; of every fourth group, bit b of the code is the top
//                bit of nibble i of word b
//
// Scales are f16. Scale (block s of 32 channels, or 0 for one a row) of position p has number
// (4 s + p%8/2) 8 + 2 (p/8) + p%2, which is (4 s + c) 8 + i in V's terms: the eight scales that a lane meets lie
// together.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "op/cache/levels.h"

namespace ridge {

inline constexpr int kTilePositions = 32;

enum class TileKind : int {
  rows,  ///< no order for tensor cores: 32 rows as their format defines them, one after another
  f16,
  bf16,
  int8_blocks,  ///< q8_0, p8: a scale for every 32 channels
  int8_row,     ///< i8r: a scale a row
  q4,           ///< q4_0
  rotor4,
  rotor3,
};
/// Kinds that are coded when their tile leaves the window.
RIDGE_HD constexpr bool is_rotor(TileKind kind) { return kind >= TileKind::rotor4; }

/// Integers that stand for the levels of rotor-3 and rotor-4 on the device: level = (integer + offset) * unit for the
/// upper half of the levels, whose mirror image is the lower half. rotor-3's are within 0.24 % of the levels; rotor-4's
/// within 2.4 % (the innermost), their squared error is 1/700 of the quantiser's own.
struct TileLevels3 {
  int integer[4] = {IntLevels<3>::kUpper[0], IntLevels<3>::kUpper[1], IntLevels<3>::kUpper[2], IntLevels<3>::kUpper[3]};
  float unit = IntLevels<3>::kUnit;
};
struct TileLevels4 {
  int integer[8] = {5, 16, 27, 39, 52, 67, 86, 114};
  float offset = 0.5f;
  float unit = 0.023900191482044926f;
};

/// Sizes of a tile.
struct TileShape {
  int bits = 0;          ///< of a code
  int scale_blocks = 0;  ///< scales a row
  int chunk_words = 0;
  int lane_words = 0;
  int code_bytes = 0;
  int bytes = 0;

  constexpr TileShape() = default;
  /// head_dim: 64, 128 or 256.
  RIDGE_HD constexpr TileShape(TileKind kind, int head_dim)
      : bits(kind == TileKind::f16 || kind == TileKind::bf16               ? 16
             : kind == TileKind::int8_blocks || kind == TileKind::int8_row ? 8
             : kind == TileKind::rotor3                                    ? 3
                                                                           : 4),
        scale_blocks(bits == 16                                              ? 0
                     : kind == TileKind::int8_blocks || kind == TileKind::q4 ? head_dim / 32
                                                                             : 1),
        chunk_words(head_dim * bits / 32 % 4 == 0 ? 4 : 2),
        lane_words(head_dim * bits / 32),
        code_bytes(128 * lane_words),
        bytes(code_bytes + 64 * scale_blocks) {}

  RIDGE_HD constexpr int word_at(int lane, int w) const {
    return ((w / chunk_words) * 32 + lane) * 4 * chunk_words + 4 * (w % chunk_words);
  }
  RIDGE_HD constexpr int scale_at(int block, int position) const {
    return code_bytes + 2 * ((4 * block + position % 8 / 2) * 8 + position / 8 * 2 + position % 2);
  }
};

/// The two sides of a layer's cache.
enum class KvSide : uint8_t { k, v };
inline constexpr KvSide kKvSides[] = {KvSide::k, KvSide::v};

/// Where an element is: lane, group and place in the group.
struct TilePlace {
  int lane, group, i;
};
RIDGE_HD constexpr TilePlace tile_place(KvSide side, int position, int channel) {
  if (side == KvSide::k) return {4 * (position % 8) + channel % 32 / 8, channel / 32 * 4 + position / 8, channel % 8};
  return {4 * (channel % 8) + position % 8 / 2, channel / 8, position / 8 * 2 + position % 2};
}

/// A code of a tile as a number below 2^bits: a half, a byte or a code of the format (q4: 0..15 with 8 for zero; rotor:
/// rank of the level). `load` and `store` take a byte offset into the tile and handle 32-bit words, so a tile may lie
/// anywhere.
template <class Load>
RIDGE_HD uint32_t tile_code(TileKind kind, const TileShape& shape, TilePlace at, Load load) {
  const auto word = [&](int w) { return uint32_t(load(shape.word_at(at.lane, w))); };
  switch (kind) {
    case TileKind::rows: return 0;
    case TileKind::f16:
    case TileKind::bf16: return word(4 * at.group + at.i / 2) >> (16 * (at.i % 2)) & 0xFFFFu;
    case TileKind::int8_blocks:
    case TileKind::int8_row: return word(2 * at.group + at.i / 4) >> (8 * (at.i % 4)) & 0xFFu;
    case TileKind::q4: return (word(at.group) >> (8 * (at.i % 4) + 4 * (at.i / 4)) & 15u) ^ 8u;
    case TileKind::rotor4: {
      const uint32_t nibble = word(at.group) >> (4 * at.i) & 15u;
      return nibble & 8u ? 7u - (nibble & 7u) : nibble + 8u;
    }
    case TileKind::rotor3: {
      const int first = at.group / 4 * 3, g = at.group % 4;
      if (g < 3) return word(first + g) >> (4 * at.i) & 7u;
      uint32_t code = 0;
      for (int b = 0; b < 3; ++b) code |= (word(first + b) >> (4 * at.i + 3) & 1u) << b;
      return code;
    }
  }
  return 0;
}

/// Puts a code there: read, changed and written back.
template <class Load, class Store>
RIDGE_HD void set_tile_code(TileKind kind, const TileShape& shape, TilePlace at, uint32_t code, Load load,
                            Store store) {
  const auto put = [&](int w, int shift, uint32_t mask, uint32_t value) {
    const int offset = shape.word_at(at.lane, w);
    store(offset, (uint32_t(load(offset)) & ~(mask << shift)) | value << shift);
  };
  switch (kind) {
    case TileKind::rows: return;
    case TileKind::f16:
    case TileKind::bf16: return put(4 * at.group + at.i / 2, 16 * (at.i % 2), 0xFFFFu, code);
    case TileKind::int8_blocks:
    case TileKind::int8_row: return put(2 * at.group + at.i / 4, 8 * (at.i % 4), 0xFFu, code);
    case TileKind::q4: return put(at.group, 8 * (at.i % 4) + 4 * (at.i / 4), 15u, code ^ 8u);
    case TileKind::rotor4: return put(at.group, 4 * at.i, 15u, code < 8u ? 8u | (7u - code) : code - 8u);
    case TileKind::rotor3: {
      const int first = at.group / 4 * 3, g = at.group % 4;
      if (g < 3) return put(first + g, 4 * at.i, 7u, code);
      for (int b = 0; b < 3; ++b) put(first + b, 4 * at.i + 3, 1u, code >> b & 1u);
      return;
    }
  }
}

/// Word w of a lane of a rotor-3 or rotor-4 tile: code(group, i) gives the lane's codes.
template <int kBits, class Code>
RIDGE_HD uint32_t rotor_word(int w, Code code) {
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    uint32_t nibble;
    if constexpr (kBits == 4) {
      nibble = code(w, i);
      nibble ^= nibble < 8u ? 15u : 8u;
    } else {
      const int first = w / 3 * 4;
      nibble = code(first + w % 3, i) | (uint32_t(code(first + 3, i)) >> w % 3 & 1u) << 3;
    }
    word |= nibble << (4 * i);
  }
  return word;
}

/// The device's level of a rotor code.
RIDGE_HD constexpr float tile_level3(int code) {
  constexpr TileLevels3 levels;
  return code < 4 ? -levels.unit * float(levels.integer[3 - code]) : levels.unit * float(levels.integer[code - 4]);
}
RIDGE_HD constexpr float tile_level4(int code) {
  constexpr TileLevels4 levels;
  return code < 8 ? -levels.unit * (float(levels.integer[7 - code]) + levels.offset)
                  : levels.unit * (float(levels.integer[code - 8]) + levels.offset);
}

}  // namespace ridge
