// Attention on a device over packed tiles, and what all its kernels have in common.
#include "gpu/attention_cases.h"

namespace ridge {
namespace {

using namespace attention_cases;

TEST_F(AttentionCuda, TilesOfEveryPairOfKinds) {
  for (const char* k : kTileFormats)
    for (const char* v : kTileFormats) check({.k = side(k), .v = side(v)}, Kernel::tiles);
}

// Shapes of two public notes on AMD chips: 3-bit caches at 20 heads over 5 of 128 values, int8 K at 24 over 4 of 256;
// one kv head of each. Two lengths: their difference is what a tile costs (tools/tables/amd.py).
std::vector<Case> published_shapes(int n_past) {
  std::vector<Case> cases;
  for (const auto& [k, v] : {std::pair("f16", "f16"), {"rotor-3", "rotor-3"}, {"q8_0", "q4_0"}})
    cases.push_back({.k = side(k), .v = side(v), .n_kv_heads = 1, .group = 4, .sequences = {{n_past, 1}}});
  for (const char* v : {"q8_0", "q4_0"})  // with f16 a block of an AMD card has too little shared memory
    cases.push_back(
        {.k = side("q8_0"), .v = side(v), .dim = 256, .n_kv_heads = 1, .group = 6, .sequences = {{n_past, 1}}});
  return cases;
}
TEST_F(AttentionCuda, TilesOfPublishedShapes17) {
  for (const Case& c : published_shapes(17 * kTilePositions - 1)) check(c, Kernel::tiles);
}
TEST_F(AttentionCuda, TilesOfPublishedShapes33) {
  for (const Case& c : published_shapes(33 * kTilePositions - 1)) check(c, Kernel::tiles);
}

// A centre of K that turns from tile to tile: coded, exact and sinks; all pairs, some, and pairs that lie side by side.
TEST_F(AttentionCuda, ATurningCentreComesBackOnTheScores) {
  KvPolicy rotated = kCentred;
  rotated.rotation = Rotation::hadamard;
  for (size_t i = 0; i < std::size(kTileFormats); ++i) {
    const int dim = 64 << (i % 3);
    Case c{
        .k = side(kTileFormats[i], kCentred), .v = side("rotor-3", kWindow), .dim = dim, .n_kv_heads = 1, .group = 3};
    c.n_pairs = dim / 2;
    c.sequences = {{300, 1}, {70, 2}};
    check(c, Kernel::tiles);
    c.sequences = {{110, 30}};
    check(c, Kernel::prefill);
  }
  for (const int n_pairs : {64, 20})
    for (const bool halves : {true, false}) {
      Case c{.k = side("rotor-3", rotated), .v = side("rotor-3", rotated), .n_kv_heads = 1};
      c.n_pairs = n_pairs, c.halves = halves;
      c.sequences = {{515, 1}, {200, 3}, {31, 2}};
      check(c, Kernel::tiles);
      c.window = 150;
      check(c, Kernel::tiles);
      c.sequences = {{90, 40}};
      check(c, Kernel::prefill);
      for (const int dim : {64, 96}) {
        Case rows{.k = side("rotor-3", rotated), .v = side("q8_0", kWindow), .dim = dim, .sequences = {{130, 5}}};
        rows.n_pairs = std::min(n_pairs, dim / 2), rows.halves = halves;
        check(rows, Kernel::rows);
      }
    }
  // Warps of more than eight tiles, and prompts over more tiles than a block holds centres of.
  Case far{.k = side("rotor-3", rotated), .v = side("rotor-3", rotated), .n_kv_heads = 1, .group = 2};
  for (const int dim : {64, 128, 256}) {
    far.dim = dim, far.n_pairs = dim / 2, far.plan = {.blocks = 1, .warps = 1};
    far.sequences = {{1171, 1}};
    check(far, Kernel::tiles);
    far.sequences = {{1171, 20}};
    for (const int window : {0, 700}) {
      far.window = window;
      check(far, Kernel::prefill);
    }
    far.window = 0, far.prefill_shared_bytes = 100 << 10;
    check(far, Kernel::prefill);
    far.prefill_shared_bytes = 227 << 10;
  }
  // Tokens that share a pass over a long cache of f16.
  Case f16{.k = side("f16", kCentred), .v = side("f16"), .dim = 64, .n_kv_heads = 1, .group = 5, .n_pairs = 32};
  f16.sequences = {{900, 3}};
  f16.plan.long_rows = 1;
  check(f16, Kernel::tiles);
}

TEST_F(AttentionCuda, TilesOfEveryHeadDimAndGroup) {
  for (const char* name : kTileFormats)
    for (const int dim : {64, 256})
      check({.k = side(name), .v = side(name), .dim = dim, .n_kv_heads = 1, .group = 3}, Kernel::tiles);
  for (int group = 1; group <= 9; ++group)
    check({.k = side("rotor-3"), .v = side("q8_0"), .dim = 64, .group = group, .sequences = {{40, 2}}}, Kernel::tiles);
}

TEST_F(AttentionCuda, TilesOfEveryLengthAndCut) {
  for (const int n : {1, 31, 32, 33, 64, 128, 129, 321})
    for (const int blocks : {1, 4, 23})
      check({.k = side("rotor-3"), .v = side("rotor-3"), .sequences = {{n - 1, 1}}, .plan = {.blocks = blocks}},
            Kernel::tiles);
  // More tiles than a block's rings hold; plans that measurements take.
  for (const TileAttnPlan plan : {TileAttnPlan{1}, TileAttnPlan{3, 1, 2, 4}, TileAttnPlan{7, 4, 1, 3}}) {
    check({.k = side("f16"), .v = side("f16"), .dim = 64, .n_kv_heads = 1, .sequences = {{1499, 1}}, .plan = plan},
          Kernel::tiles);
    check({.k = side("q8_0"), .v = side("q4_0"), .dim = 64, .n_kv_heads = 1, .sequences = {{1399, 2}}, .plan = plan},
          Kernel::tiles);
  }
}

/// Warps that take many pieces each, an odd number of them, and single tiles behind them.
TEST_F(AttentionCuda, TilesOfLongSequences) {
  for (const char* name : kTileFormats)
    for (const int dim : {64, 128, 256})
      for (const TileAttnPlan plan : {TileAttnPlan{.blocks = 1, .warps = 1}, TileAttnPlan{.blocks = 2}})
        check({.k = side(name, kCentred),
               .v = side(name, kCentred),
               .dim = dim,
               .n_kv_heads = 1,
               .group = 1,
               .sequences = {{dim == 128 ? 2532 : 1171, 1}},
               .plan = plan},
              Kernel::tiles);
}

TEST_F(AttentionCuda, TilesOfWindowsAndSinks) {
  for (const int n : {1, 4, 5, 40, 64, 96, 127, 128, 129, 193}) {
    Case c{.k = side("rotor-3", kCentred), .v = side("rotor-3", kCentred), .dim = 64, .sequences = {{n - 1, 1}}};
    check(c, Kernel::tiles);
    c.v = side("f16", kPlain);
    check(c, Kernel::tiles);
    c.k = side("q4_0", kWide);
    c.v = side("rotor-4", kWindow);
    check(c, Kernel::tiles);
    c.k = side("q8_0", kSinks);
    check(c, Kernel::tiles);
  }
}

/// Tokens of a sequence see coded or exact rows each by its own position.
TEST_F(AttentionCuda, TilesOfStepsOfManySequences) {
  Case c{
      .k = side("q8_0"), .v = side("rotor-4"), .dim = 64, .sequences = {{129, 1}, {0, 1}, {60, 4}, {240, 16}, {0, 3}}};
  for (const int blocks : {1, 4, 132})
    for (const int padding : {0, 3}) {
      c.plan.blocks = blocks;
      c.padding = padding;
      check(c, Kernel::tiles);
    }
  c.k = c.v = side("rotor-3", kCentred);
  c.sequences = {{120, 16}, {55, 12}, {0, 1}, {160, 5}};
  check(c, Kernel::tiles);
  c.v = side("q4_0", kWindow);
  check(c, Kernel::tiles);
  // Tokens that share a pass, up to eight, until one sees another tile coded.
  for (const int group : {1, 3, 4}) {
    c.group = group;
    c.sequences = {{250, 9}, {90, 2}, {0, 6}};
    for (const char* name : {"f16", "rotor-3"}) {
      c.k = c.v = side(name, kCentred);
      check(c, Kernel::tiles);
    }
  }
  // More rows than lanes, and tokens of one sequence on both sides of the 32nd.
  c.sequences = {{20, 29}, {130, 8}};
  check(c, Kernel::tiles);
  c.sequences.assign(40, {33, 1});
  c.sequences[7] = {300, 1};
  check(c, Kernel::tiles);
}

/// Two packs of heads that share a pass, where the cache is long: groups that fill the packs or do not, passes that end
/// where another tile is coded, beside sequences of one token and shorter ones.
TEST_F(AttentionCuda, PacksOfHeads) {
  const std::pair<KvSideConfig, KvSideConfig> pairs[] = {{side("f16"), side("f16")},
                                                         {side("f16", kSinks), side("f16", kSinks)},
                                                         {side("bf16"), side("bf16")},
                                                         {side("rotor-3"), side("rotor-3")}};
  for (const int dim : {64, 128})
    for (const auto& [k, v] : pairs)
      for (const int group : {4, 6})
        check({.k = k,
               .v = v,
               .dim = dim,
               .n_kv_heads = 1,
               .group = group,
               .sequences = {{171, 4}},
               .plan = {.blocks = 3, .long_rows = 8}},
              Kernel::tiles);
  Case c{.k = side("f16"), .v = side("f16"), .dim = 64, .n_kv_heads = 1, .plan = {.blocks = 5, .long_rows = 24}};
  for (const int group : {1, 3, 5, 8, 9}) {
    c.group = group;
    c.sequences = {{250, 9}, {90, 2}, {300, 1}, {0, 6}, {33, 16}};
    check(c, Kernel::tiles);
  }
}

TEST_F(AttentionCuda, OutputsLeaveCacheSpace) {
  for (const int dim : {64, 128, 256})
    for (const Rotation rotation : {Rotation::hadamard, Rotation::planar})
      for (const Kernel kernel : {Kernel::tiles, Kernel::prefill, Kernel::rows, Kernel::rows_f16})
        check({.k = side("rotor-3", {rotation, true, 32}),
               .v = side("rotor-4", {rotation, true, 32}),
               .dim = dim,
               .sequences = {{66, 2}}},
              kernel);
}

TEST_F(AttentionCuda, PromptsOverEveryKind) {
  for (const char* k : kTileFormats)
    for (const char* v : {"f16", k})
      check({.k = side(k), .v = side(v), .dim = 64, .sequences = {{37, 40}}}, Kernel::prefill);
  for (const char* name : kTileFormats)
    check({.k = side(name), .v = side(name), .n_kv_heads = 1, .sequences = {{30, 20}}}, Kernel::prefill);
  for (const char* name : {"f16", "q8_0", "rotor-3"})
    check({.k = side(name), .v = side(name), .dim = 256, .n_kv_heads = 1, .sequences = {{30, 20}}}, Kernel::prefill);
}

TEST_F(AttentionCuda, PromptsOfWindowsAndSinks) {
  const std::pair<KvSideConfig, KvSideConfig> mixes[] = {{side("f16"), side("rotor-3", kCentred)},
                                                         {side("rotor-3", kCentred), side("rotor-4", kCentred)},
                                                         {side("q8_0", kWindow), side("q4_0", kWide)},
                                                         {side("q4_0", kSinks), side("i8r", kSinks)},
                                                         {side("rotor-3", kCentred), side("q8_0", kWindow)}};
  for (const auto& [k, v] : mixes)
    for (const Sequence s : {Sequence{0, 17}, {0, 150}, {31, 33}, {64, 70}, {200, 40}, {63, 1}})
      check({.k = k, .v = v, .dim = 64, .group = 3, .sequences = {s}}, Kernel::prefill);
}

TEST_F(AttentionCuda, PromptsOfAnyHeadsAndTokens) {
  for (const int n : {1, 2, 17, 64, 65, 129})
    for (const int group : {1, 5, 8})
      check({.k = side("q8_0"), .v = side("q8_0"), .dim = 64, .n_kv_heads = 1, .group = group, .sequences = {{3, n}}},
            Kernel::prefill);
}

/// Blocks whose tiles are in parts, of devices with much shared memory and with little.
TEST_F(AttentionCuda, PromptsInParts) {
  const std::pair<KvSideConfig, KvSideConfig> mixes[] = {{side("f16"), side("f16")},
                                                         {side("q8_0"), side("rotor-3")},
                                                         {side("rotor-3", kCentred), side("rotor-4", kCentred)},
                                                         {side("q4_0", kSinks), side("q8_0", kWindow)},
                                                         {side("rotor-3", kCentred), side("f16", kPlain)}};
  for (const int shared_bytes : {99 << 10, 227 << 10}) {
    const auto check_split = [&](Case c) {
      c.prefill_shared_bytes = shared_bytes;
      c.prefill_least_tiles = 1;
      check(c, Kernel::prefill);
      EXPECT_TRUE(split_);
    };
    for (const auto& [k, v] : mixes) {
      check_split({.k = k,
                   .v = v,
                   .dim = 64,
                   .n_kv_heads = 1,
                   .group = 3,
                   .sequences = {{0, 90}, {131, 43}, {190, 17}},
                   .prefill_blocks = &k == &mixes[0].first ? 3 : 200});
      check_split({.k = k, .v = v, .dim = 128, .n_kv_heads = 1, .sequences = {{70, 30}}, .prefill_blocks = 3});
      check_split({.k = k, .v = v, .dim = 256, .n_kv_heads = 1, .sequences = {{70, 30}}, .prefill_blocks = 3});
    }
  }
}

/// Parts of many steps, and tiles that only some warps of a block see.
TEST_F(AttentionCuda, PromptsInLongParts) {
  for (const char* name : {"f16", "rotor-3"})
    for (const int shared_bytes : {99 << 10, 227 << 10})
      for (const int blocks : {1, 2})
        check({.k = side(name, kPlain),
               .v = side(name, kWindow),
               .dim = 64,
               .n_kv_heads = 1,
               .group = 1,
               .sequences = {{900, 256}},
               .prefill_shared_bytes = shared_bytes,
               .prefill_blocks = blocks},
              Kernel::prefill);
}

/// Parts run side by side, are not too short, cover every query once, and only the span itself decides.
TEST_F(AttentionCuda, PartsOfPrompts) {
  for (const int n_past : {0, 100, 2048, 100'000})
    for (const int n : {17, 43, 512})
      for (const int n_kv_heads : {1, 2, 8}) {
        const PrefillPlan plan{.queries = 256, .blocks = 132};
        std::vector<AttnBlock> blocks;
        const int rows = add_prefill_blocks(plan, {0, n, n_past}, 6, n_kv_heads, 0, blocks);
        const int whole = (6 * n + 255) / 256;
        EXPECT_LE(int(blocks.size()) * n_kv_heads, std::max(plan.blocks, whole * n_kv_heads));
        EXPECT_LE(rows, 16 * 6 * n);
        int queries = 0, next_row = 0;
        for (const AttnBlock& block : blocks) {
          const int last_n = n_past + (std::min(block.first_query + 256, 6 * n) - 1) / 6 + 1;
          EXPECT_TRUE(block.n_parts == 1 || (last_n + 31) / 32 / block.n_parts >= plan.least_tiles / 2);
          EXPECT_LE(block.n_parts, 16);
          if (block.part == 0) queries += std::min(256, 6 * n - block.first_query);
          if (block.n_parts == 1) continue;
          EXPECT_EQ(block.place, next_row);
          next_row += std::min(256, 6 * n - block.first_query);
        }
        EXPECT_EQ(queries, 6 * n);
        EXPECT_EQ(rows, next_row);
        if (n == 512 && n_past == 2048 && n_kv_heads == 2) {
          EXPECT_GE(int(blocks.size()), 48);
        }
        std::vector<AttnBlock> behind(3);
        add_prefill_blocks(plan, {0, n, n_past}, 6, n_kv_heads, 0, behind);
        EXPECT_EQ(behind.size(), blocks.size() + 3);
      }
}

/// Layers with an attention window, with and without sink logits: windows that begin at every place of a tile, before,
/// within and behind the sinks and the exact rows, shorter than a tile, and longer than the sequence.
TEST_F(AttentionCuda, AttentionWindowsOverTiles) {
  for (const char* name : kTileFormats)
    for (const int dim : {64, 128})
      check({.k = side(name),
             .v = side(name),
             .dim = dim,
             .n_kv_heads = 1,
             .group = 3,
             .sequences = {{420, 1}, {199, 2}, {39, 1}, {40, 1}},
             .window = 40,
             .sink_logits = dim == 64},
            Kernel::tiles);
  check({.k = side("q8_0"), .v = side("rotor-3"), .dim = 256, .sequences = {{300, 1}}, .window = 70}, Kernel::tiles);
  for (const auto& [k, v] : {std::pair{kCentred, kCentred}, {kSinks, kWindow}, {kWide, kPlain}})
    for (const int window : {1, 31, 32, 63, 64, 97, 130})
      check({.k = side("rotor-3", k),
             .v = side("q4_0", v),
             .dim = 64,
             .n_kv_heads = 1,
             .sequences = {{window + 1, 1}, {190, 16}, {window + 30, 3}, {300, 1}},
             .window = window,
             .sink_logits = window % 2 == 0,
             .padding = 1,
             .plan = {.blocks = window % 3 == 0 ? 23 : 3}},
            Kernel::tiles);
}

TEST_F(AttentionCuda, AttentionWindowsOfPrompts) {
  for (const char* name : kTileFormats)
    check({.k = side(name),
           .v = side(name),
           .dim = 64,
           .group = 3,
           .sequences = {{200, 40}, {0, 90}},
           .window = 45,
           .sink_logits = true},
          Kernel::prefill);
  for (const int dim : {128, 256})
    check({.k = side("rotor-3"), .v = side("f16"), .dim = dim, .sequences = {{250, 33}}, .window = 80},
          Kernel::prefill);
  for (const auto& [k, v] : {std::pair{kCentred, kCentred}, {kSinks, kWindow}, {kWide, kPlain}})
    for (const int window : {1, 31, 32, 63, 97, 130, 400})
      for (const bool split : {false, true}) {
        check({.k = side("rotor-3", k),
               .v = side("q4_0", v),
               .dim = 64,
               .n_kv_heads = 1,
               .group = 2,
               .sequences = {{190, 70}, {2, 50}},
               .window = window,
               .sink_logits = window % 2 == 0,
               .prefill_blocks = split ? 200 : 1,
               .prefill_least_tiles = split ? 1 : 8},
              Kernel::prefill);
        EXPECT_TRUE(!split || split_);
      }
}

/// Sink logits beside whole sequences, in one part and in many.
TEST_F(AttentionCuda, SinkLogits) {
  Case c{
      .k = side("f16"), .v = side("f16"), .dim = 64, .group = 9, .sequences = {{0, 1}, {400, 3}}, .sink_logits = true};
  check(c, Kernel::tiles);
  check(c, Kernel::rows);
  c.sequences = {{0, 30}, {400, 20}};
  for (const int least_tiles : {1, 8}) {
    c.prefill_least_tiles = least_tiles;
    c.prefill_blocks = least_tiles == 1 ? 200 : 1;
    check(c, Kernel::prefill);
  }
}

/// Kernels for many queries: a sequence's result is the same bits alone and beside others.
TEST_F(AttentionCuda, SequencesSideBySideGiveTheBitsOfOneAlone) {
  for (const Kernel kernel : {Kernel::prefill, Kernel::rows, Kernel::rows_f16}) {
    Case c{.k = side("q8_0", kWindow),
           .v = side("rotor-3", kWindow),
           .dim = 64,
           .sequences = {{20, 50}, {64, 30}},
           .slots = 4,
           .prefill_blocks = 6,
           .prefill_least_tiles = 1};
    auto beside = check(c, kernel);
    EXPECT_EQ(split_, kernel != Kernel::rows);
    c.sequences.pop_back();
    const auto alone = check(c, kernel);
    beside.resize(alone.size());
    EXPECT_TRUE(beside == alone);
    c.alone = true;  // rows: in whichever block
    EXPECT_TRUE(kernel != Kernel::rows || check(c, kernel) == alone);
  }
}

/// A scratch serves as many rows as it was made for, or fewer.
TEST(TileAttn, ScratchGrowsWithRows) {
  for (const int blocks : {1, 7, 132})
    for (int n = 1; n < 300; ++n)
      ASSERT_LE(tile_attn_scratch_bytes(n, 8, 1, 64, blocks), tile_attn_scratch_bytes(n + 1, 8, 1, 64, blocks));
}

/// Pages beyond 2^32 bytes and 2^31 f16 values, against the same pages at the front. Only with memory for it.
TEST_F(AttentionCuda, OffsetsBeyond32Bits) {
  if (gpu::free_bytes() < int64_t(12) << 30) GTEST_SKIP() << "needs 12 GiB of device memory";
  constexpr int kDim = 128, kHeads = 4, kUsed = 32, kFar = 80'000, kRows = 20, kPast = kUsed * kPagePositions - kRows;
  const KvLayerConfig layer{side("f16"), side("f16"), 2, kDim};
  KvTiles tiles[2] = {KvLayout(layer, KvSide::k, true).tiles, KvLayout(layer, KvSide::v, true).tiles};
  const RowRotation rotation(Rotation::none, 0, kDim);
  gpu::Buffer pages[2];
  for (int s = 0; s < 2; ++s) {
    pages[s] = gpu::Buffer((kFar + kUsed) * tiles[s].page_bytes());
    tiles[s].pages = pages[s].as<std::byte>();
    for (const int first : {0, kFar})
      device_fill_tiles(stream(), TileKind::f16, kDim, kUsed * 2 * kPageTiles, uint64_t(5 + s),
                        tiles[s].pages + first * tiles[s].page_bytes());
  }
  std::vector<StepRow> rows;
  for (int i = 0; i < kRows; ++i) rows.push_back({.row = i, .position = kPast + i, .slot = 0, .ring = 0});
  const gpu::Buffer q = up(normal_floats(1, kRows * kHeads * kDim)), drows = up(rows),
                    blocks = up(std::vector<AttnBlock>{{.n = kRows}}),
                    scratch(tile_attn_scratch_bytes(kRows, kHeads, 2, kDim, tile_attn_blocks()));
  std::vector<float> results[2][2];
  for (const int far : {0, 1}) {
    std::vector<int32_t> table(kUsed);
    std::iota(table.begin(), table.end(), far * kFar);
    const gpu::Buffer dtable = up(table), out(4 * kRows * kHeads * kDim);
    const DeviceAttention a{.rows = {.n = kRows,
                                     .most = kRows,
                                     .rows = drows.as<StepRow>(),
                                     .pages = dtable.as<int32_t>(),
                                     .page_pitch = kUsed},
                            .n_heads = kHeads,
                            .scale = 0.1f,
                            .k = tiles[0],
                            .v = tiles[1],
                            .q = q.as<float>(),
                            .out = out.as<float>()};
    tile_attn(stream(), a, scratch.as<std::byte>(), {});
    results[0][far] = down(out.as<float>(), kRows * kHeads * kDim);
    const PrefillPlan plan = prefill_attn_plan(kDim);
    prefill_attn(
        stream(), a,
        {.blocks = blocks.as<AttnBlock>(), .n = 1, .queries = plan.queries, .by_warpgroups = plan.by_warpgroups});
    results[1][far] = down(out.as<float>(), kRows * kHeads * kDim);
  }
  for (const auto& [near, far] : results) EXPECT_TRUE(near == far);
}

}  // namespace
}  // namespace ridge
