// Rows of the formats that tiles hold (tile_order.h), element by element: how a row's bytes and a tile's codes and
// scales become each other. One specialisation a format; a format without one has no tiles.
#pragma once

#include "format/kv_types.h"
#include "op/cache/tile_order.h"

namespace ridge {

/// code(row, d): the code of channel d as tile_code() means it. scale(row, head_dim, block): its fp16 scale. put_*
/// write them.
template <class F>
struct TileRows {
  static constexpr bool kHeld = false;
};

namespace tile_rows {

RIDGE_HD inline uint16_t load16(const std::byte* at) {
  uint16_t value;
  std::memcpy(&value, at, 2);
  return value;
}
RIDGE_HD inline void store16(std::byte* at, uint32_t value) {
  const auto half = uint16_t(value);
  std::memcpy(at, &half, 2);
}

template <TileKind kKindOf>
struct Floats16 {
  static constexpr bool kHeld = true;
  static constexpr TileKind kKind = kKindOf;
  RIDGE_HD static uint32_t code(const std::byte* row, int d) { return load16(row + 2 * d); }
  RIDGE_HD static void put_code(std::byte* row, int d, uint32_t code) { store16(row + 2 * d, code); }
  RIDGE_HD static uint16_t scale(const std::byte*, int, int) { return 0; }
  RIDGE_HD static void put_scale(std::byte*, int, int, uint16_t) {}
};

/// Codes of kBits in a little-endian number, then the scales.
template <TileKind kKindOf, int kBits>
struct PackedRow {
  static constexpr bool kHeld = true;
  static constexpr TileKind kKind = kKindOf;
  RIDGE_HD static uint32_t code(const std::byte* row, int d) {
    const int bit = kBits * d, byte = bit / 8;
    uint32_t bits = uint32_t(row[byte]);
    if (bit % 8 + kBits > 8) bits |= uint32_t(row[byte + 1]) << 8;
    return bits >> (bit % 8) & ((1u << kBits) - 1);
  }
  /// The row starts as zeros.
  RIDGE_HD static void put_code(std::byte* row, int d, uint32_t code) {
    const int bit = kBits * d, byte = bit / 8;
    const uint32_t bits = code << (bit % 8);
    row[byte] |= std::byte(bits & 0xFF);
    if (bit % 8 + kBits > 8) row[byte + 1] |= std::byte(bits >> 8);
  }
  RIDGE_HD static uint16_t scale(const std::byte* row, int head_dim, int block) {
    return load16(row + head_dim * kBits / 8 + 2 * block);
  }
  RIDGE_HD static void put_scale(std::byte* row, int head_dim, int block, uint16_t scale) {
    store16(row + head_dim * kBits / 8 + 2 * block, scale);
  }
};

/// Blocks of 32 values: the scale, then the codes.
template <TileKind kKindOf, class Block>
struct BlockRow {
  static constexpr bool kHeld = true;
  static constexpr TileKind kKind = kKindOf;
  static constexpr int kBlock = sizeof(Block);
  RIDGE_HD static uint16_t scale(const std::byte* row, int, int block) { return load16(row + block * kBlock); }
  RIDGE_HD static void put_scale(std::byte* row, int, int block, uint16_t scale) {
    store16(row + block * kBlock, scale);
  }
};

RIDGE_HD inline uint32_t load32(const std::byte* at) {
  uint32_t word;
  std::memcpy(&word, at, 4);
  return word;
}

}  // namespace tile_rows

template <>
struct TileRows<KvF16> : tile_rows::Floats16<TileKind::f16> {};
template <>
struct TileRows<KvBf16> : tile_rows::Floats16<TileKind::bf16> {};
template <>
struct TileRows<KvI8r> : tile_rows::PackedRow<TileKind::int8_row, 8> {};
template <>
struct TileRows<KvRotor4> : tile_rows::PackedRow<TileKind::rotor4, 4> {};
template <>
struct TileRows<KvRotor3> : tile_rows::PackedRow<TileKind::rotor3, 3> {};

template <>
struct TileRows<KvP8> : tile_rows::PackedRow<TileKind::int8_blocks, 8> {};
template <>
struct TileRows<KvQ8_0> : tile_rows::BlockRow<TileKind::int8_blocks, Q8_0::Block> {
  RIDGE_HD static uint32_t code(const std::byte* row, int d) { return uint32_t(row[d / 32 * kBlock + 2 + d % 32]); }
  RIDGE_HD static void put_code(std::byte* row, int d, uint32_t code) {
    row[d / 32 * kBlock + 2 + d % 32] = std::byte(code);
  }
};
/// Element i is the low nibble of byte i, element i + 16 its high one.
template <>
struct TileRows<KvQ4_0> : tile_rows::BlockRow<TileKind::q4, Q4_0::Block> {
  RIDGE_HD static uint32_t code(const std::byte* row, int d) {
    return uint32_t(row[d / 32 * kBlock + 2 + d % 16]) >> (d % 32 / 16 * 4) & 15u;
  }
  RIDGE_HD static void put_code(std::byte* row, int d, uint32_t code) {
    row[d / 32 * kBlock + 2 + d % 16] |= std::byte(code << (d % 32 / 16 * 4));
  }
};

/// Row `position` of a tile as bytes of format F (`row` is F::row_bytes(head_dim) zeros before).
template <class F>
RIDGE_HD void tile_to_row(const std::byte* tile, KvSide side, int position, int head_dim, std::byte* row) {
  const TileShape shape(TileRows<F>::kKind, head_dim);
  const auto load = [&](int at) { return tile_rows::load32(tile + at); };
  for (int d = 0; d < head_dim; ++d)
    TileRows<F>::put_code(row, d, tile_code(TileRows<F>::kKind, shape, tile_place(side, position, d), load));
  for (int s = 0; s < shape.scale_blocks; ++s)
    TileRows<F>::put_scale(row, head_dim, s, tile_rows::load16(tile + shape.scale_at(s, position)));
}

/// The other way; words of the tile are read, changed and written back.
template <class F>
RIDGE_HD void row_to_tile(const std::byte* row, KvSide side, int position, int head_dim, std::byte* tile) {
  const TileShape shape(TileRows<F>::kKind, head_dim);
  const auto load = [&](int at) { return tile_rows::load32(tile + at); };
  const auto store = [&](int at, uint32_t word) { std::memcpy(tile + at, &word, 4); };
  for (int d = 0; d < head_dim; ++d)
    set_tile_code(TileRows<F>::kKind, shape, tile_place(side, position, d), TileRows<F>::code(row, d), load, store);
  for (int s = 0; s < shape.scale_blocks; ++s)
    tile_rows::store16(tile + shape.scale_at(s, position), TileRows<F>::scale(row, head_dim, s));
}

}  // namespace ridge
