// Ranks that are led: what the first one makes of its calls is, bit for bit, what ranks make that all have the command.
#include "engine/lead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/led_texts.h"

namespace ridge {
namespace {

using testing::HasSubstr;

class LedRanks : public testing::TestWithParam<LedCase> {};

TEST_P(LedRanks, DoAndHoldWhatRanksDoThatAllHaveTheCommand) { expect_led_like_alike(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Caches, LedRanks,
                         testing::Values(LedCase{"exact", "tiny@weights=f32", "f16"},
                                         LedCase{"weighted", "tiny@weights=f32", "rotor-3"},
                                         LedCase{"shared_heads", "tiny@weights=f32", "q8_0", 4},
                                         LedCase{"sliding", "tiny-gemma@weights=f32", "q8_0"},
                                         LedCase{"states", "tiny-delta@weights=f32", "q8_0"},
                                         LedCase{"latent", "tiny-latent@weights=f32", "p8"},
                                         LedCase{"experts", "tiny-experts@weights=f32", "rotor-4"},
                                         LedCase{"bitnet", "tiny-bitnet", "q8_0"}),
                         [](const auto& of) { return of.param.name; });

/// A message of its own for what every rank must answer; else calls wait for the next step.
TEST(LedRanks, CountTheCacheOfAll) {
  const LedCase of{"", "tiny@weights=f32", "q8_0", 4};
  std::vector<PageCounts> alone, led;
  const auto counts = [&](Ranks& ranks, std::vector<PageCounts>& sums) {
    Texts texts(of, ranks);
    Rng rng(3);
    for (int i = 0; i < 40; ++i) texts.step(rng);
    EXPECT_EQ(texts.pool().memory().saturated(0, KvSide::k), 0);
    sums = texts.pool().memory().counts(0, KvSide::k);
  };
  on_ranks(1, [&](Ranks& ranks) { counts(ranks, alone); });
  on_led_ranks(4, [&](Ranks& ranks) { counts(ranks, led); });
  ASSERT_EQ(led.size(), alone.size());
  double norm2 = 0;
  for (size_t page = 0; page < led.size(); ++page) {
    norm2 += alone[page].norm2;
    EXPECT_NEAR(led[page].norm2, alone[page].norm2, 1e-3 * alone[page].norm2) << page;
  }
  EXPECT_GT(norm2, 0);
}

TEST(LedRanks, AMemoryThatOneRankCannotOpenIsTheFirstOnesError) {
  on_ranks(3, [](Ranks& ranks) {
    const Status own = ranks.rank() == 1 ? Status(Failure{ErrorKind::no_memory, "too much"}) : Status();
    if (!ranks.is_first()) return agree_on_memory(ranks, own);
    try {
      agree_on_memory(ranks, own);
      ADD_FAILURE() << "rank 1 failed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::no_memory);
      EXPECT_STREQ(error.what(), "rank 1: too much");
    }
  });
}

TEST(LedRanks, WhatTheyCannotDoIsRefused) {
  on_led_ranks(2, [](Ranks& ranks) {
    Engine engine("synth:tiny-bitnet", {.n_threads = 1}, &ranks);
    EXPECT_THROW(engine.backend().watch(nullptr, [](int, Block, View2<float>) {}), Error);
    SessionOptions options{.n_ctx = 64};
    options.k = options.v = parse_kv_side("rotor-3").or_throw();
    const auto layers = layer_configs(options, engine.plan());
    try {
      engine.open_pool(layers, 4, 1);
      ADD_FAILURE() << "weighted rounding of BitNet";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("--tp 2: weighted rounding needs all query heads"));
    }
  });
}

}  // namespace
}  // namespace ridge
