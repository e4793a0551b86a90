// The order of tiles for tensor cores, and the integers that stand for levels in it.
#include "op/cache/tile_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "format/kv_rotor.h"

namespace ridge {
namespace {

constexpr TileKind kKinds[] = {TileKind::f16, TileKind::bf16,   TileKind::int8_blocks, TileKind::int8_row,
                               TileKind::q4,  TileKind::rotor4, TileKind::rotor3};

TEST(KvTile, EveryElementHasItsOwnPlace) {
  for (const TileKind kind : kKinds)
    for (const int dim : {64, 128, 256})
      for (const KvSide side : kKvSides) {
        const TileShape shape(kind, dim);
        // Codes made of their place survive all others being written.
        std::vector<std::byte> tile(size_t(shape.code_bytes), std::byte(0xFF));
        const auto load = [&](int at) {
          uint32_t word;
          std::memcpy(&word, &tile[size_t(at)], 4);
          return word;
        };
        const auto store = [&](int at, uint32_t word) { std::memcpy(&tile[size_t(at)], &word, 4); };
        const uint32_t mask = (1u << shape.bits) - 1;
        const auto code = [&](int p, int d) { return uint32_t(p * 2654435761u + unsigned(d) * 40503u) >> 7 & mask; };
        for (int p = 0; p < kTilePositions; ++p)
          for (int d = 0; d < dim; ++d) set_tile_code(kind, shape, tile_place(side, p, d), code(p, d), load, store);
        for (int p = 0; p < kTilePositions; ++p)
          for (int d = 0; d < dim; ++d)
            ASSERT_EQ(tile_code(kind, shape, tile_place(side, p, d), load), code(p, d))
                << int(kind) << " " << p << " " << d;
        EXPECT_EQ(shape.code_bytes, kTilePositions * dim * shape.bits / 8);
        std::vector<int> scales(size_t(shape.scale_blocks * kTilePositions));
        for (int s = 0; s < shape.scale_blocks; ++s)
          for (int p = 0; p < kTilePositions; ++p) ++scales[size_t(shape.scale_at(s, p) - shape.code_bytes) / 2];
        for (const int count : scales) EXPECT_EQ(count, 1);
      }
}

template <int kBits>
void expect_words_of_places() {
  constexpr TileKind kKind = kBits == 3 ? TileKind::rotor3 : TileKind::rotor4;
  const TileShape shape(kKind, 64);
  std::vector<uint32_t> words(size_t(shape.lane_words), 0u);
  const auto code = [](int group, int i) {
    return (unsigned(group) * 2654435761u + unsigned(i) * 40503u) >> 9 & ((1u << kBits) - 1);
  };
  const auto word_of = [&](int at) -> uint32_t& {
    int w = 0;
    while (shape.word_at(5, w) != at) ++w;
    return words[size_t(w)];
  };
  for (int group = 0; group < 8; ++group)
    for (int i = 0; i < 8; ++i)
      set_tile_code(
          kKind, shape, {5, group, i}, code(group, i), [&](int at) { return word_of(at); },
          [&](int at, uint32_t word) { word_of(at) = word; });
  for (int w = 0; w < shape.lane_words; ++w) EXPECT_EQ(rotor_word<kBits>(w, code), words[size_t(w)]) << w;
}

TEST(KvTile, WordsOfRotorCodesAreThoseOfTheirPlaces) {
  expect_words_of_places<3>();
  expect_words_of_places<4>();
}

TEST(KvTile, LevelsAreNearTheFormats) {
  for (int code = 0; code < 8; ++code)
    EXPECT_NEAR(tile_level3(code), LloydMax<3>::kLevels[size_t(code)],
                0.0024 * std::abs(LloydMax<3>::kLevels[size_t(code)]));
  double error = 0;
  for (int code = 0; code < 16; ++code) {
    const double level = LloydMax<4>::kLevels[size_t(code)];
    EXPECT_NEAR(tile_level4(code), level, 0.024 * std::abs(level));
    error += (tile_level4(code) - level) * (tile_level4(code) - level) / 16;
  }
  EXPECT_LT(error, 0.009501 / 400);
}

}  // namespace
}  // namespace ridge
