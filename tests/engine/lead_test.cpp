// Ranks that are led: what the first one makes of its calls is, bit for bit, what ranks make on all of which the test
// makes the same calls.
#include "engine/lead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/led_texts.h"
#include "cases/paths.h"
#include "cases/rank_answers.h"
#include "cases/temp_dir.h"

namespace ridge {
namespace {

using testing::HasSubstr;

class LedRanks : public testing::TestWithParam<LedCase> {};

TEST_P(LedRanks, DoAndHoldWhatRanksDoThatAllGetTheCalls) { expect_led_like_alike(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Caches, LedRanks,
                         testing::Values(LedCase{"exact", "tiny@weights=f32", "f16"},
                                         LedCase{"weighted", "tiny@weights=f32", "rotor-3"},
                                         LedCase{"shared_heads", "tiny@weights=f32", "q8_0", 4},
                                         LedCase{"sliding", "tiny-gemma@weights=f32", "q8_0"},
                                         LedCase{"states", "tiny-delta@weights=f32", "q8_0"},
                                         LedCase{"latent", "tiny-latent@weights=f32", "p8"},
                                         LedCase{"index", "tiny-index@weights=f32", "f16"},
                                         LedCase{"experts", "tiny-experts@weights=f32", "rotor-4"},
                                         LedCase{"two_kinds_of_heads", "tiny-gemma4@weights=f32", "q8_0"},
                                         LedCase{"shared_caches", "tiny-gemma4-e@weights=f32", "q8_0"},
                                         LedCase{"bitnet", "tiny-bitnet", "q8_0"},
                                         LedCase{"stages", "tiny@weights=f32", "rotor-3", 2, "cpu", 2},
                                         LedCase{"pairs_sliding", "tiny-gemma@weights=f32", "q8_0", 4, "cpu", 2},
                                         LedCase{"stages_states", "tiny-delta@weights=f32", "f16", 2, "cpu", 2}),
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
    Result<std::vector<int64_t>> own = std::vector<int64_t>{8, ranks.rank()};
    const std::vector<int64_t> sums = agree_on_memory(ranks, own);
    EXPECT_EQ(sums, ranks.is_first() ? (std::vector<int64_t>{24, 3}) : std::vector<int64_t>());
    if (ranks.rank() == 1) own = Failure{ErrorKind::no_memory, "too much"};
    if (!ranks.is_first()) return void(agree_on_memory(ranks, own));
    try {
      agree_on_memory(ranks, own);
      ADD_FAILURE() << "rank 1 failed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::no_memory);
      EXPECT_STREQ(error.what(), "rank 1: too much");
    }
  });
}

/// Logits of a few tokens, and the residual streams in front of every block; watching changes what the blocks read.
std::vector<std::vector<float>> watched(Engine& engine) {
  std::vector<std::vector<float>> seen;
  engine.backend().watch(nullptr, [&](int layer, Block block, View2<float> x) {
    seen.emplace_back(x.data, x.data + x.rows * x.cols);
    x(0, layer) += block == Block::mixer ? 0.5f : 0.25f;
  });
  const std::vector<int32_t> ids = {1, 7, 30, 4, 9};
  seen.push_back(answer_of(engine, ids, 1, "f16").decoded);
  engine.backend().watch(nullptr, nullptr);
  seen.push_back(answer_of(engine, ids, 1, "f16").decoded);
  return seen;
}

/// Stages and BitNet change no bit, so what the first rank sees is what a process alone sees.
TEST(LedRanks, ShowTheFirstOneEveryBlock) {
  for (const auto& [shape, n_stages] : {std::pair("synth:tiny@weights=f32", 2), {"synth:tiny-bitnet", 1}}) {
    Engine alone(shape, {.n_threads = 1, .isa = "scalar"});
    const auto expected = watched(alone);
    const auto body = [&, path = shape](Ranks& ranks) {
      Engine engine(path, {.n_threads = 1, .isa = "scalar"}, &ranks);
      EXPECT_EQ(watched(engine), expected) << path;
    };
    on_led_ranks(2, body, n_stages);
  }
}

/// Benches load one model after another, and open several caches.
TEST(LedRanks, LoadOneModelAfterAnother) {
  const std::vector<int32_t> ids = {1, 7, 30, 4, 9};
  on_led_ranks(2, [&](Ranks& ranks) {
    for (const char* const path : {"synth:tiny-bitnet", "synth:tiny@weights=f32", "synth:tiny-bitnet"}) {
      Engine engine(path, {.n_threads = 1, .isa = "scalar"}, &ranks);
      EXPECT_EQ(engine.info().n_ranks, 2);
      EXPECT_GT(engine.backend().free_bytes(), 0);
      for (const char* const kv : {"f16", "q8_0"}) {
        Engine alone(path, {.n_threads = 1, .isa = "scalar"});
        EXPECT_EQ(answer_of(engine, ids, 8, kv).greedy, answer_of(alone, ids, 8, kv).greedy) << path << " " << kv;
      }
    }
  });
}

TEST(LedRanks, ModelsMayLieElsewhereButMustBeTheSame) {
  const TempDir dir;
  const std::string first = RIDGE_SOURCE_DIR "/models/stories260K.gguf", here = (dir / "elsewhere.gguf").native();
  std::filesystem::copy_file(first, here);
  const auto follow_with = [&](Ranks& ranks, const std::string& model) {
    follow(ranks, [&](const std::string& path) {
      EXPECT_EQ(path, first);
      return model;
    });
  };
  on_ranks(2, [&](Ranks& ranks) {
    ranks.be_led();
    if (!ranks.is_first()) return follow_with(ranks, here);
    const Engine engine(first, {.n_threads = 1}, &ranks);
    EXPECT_EQ(engine.info().path, first);
    lead_end(ranks);
  });
  on_ranks(2, [&](Ranks& ranks) {
    ranks.be_led();
    try {
      if (!ranks.is_first()) follow_with(ranks, RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf");
      else Engine(first, {.n_threads = 1}, &ranks);
      ADD_FAILURE() << "two models are one";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the model of rank 1 is "));
    }
  });
}

TEST(LedRanks, WhatTheyCannotDoIsRefused) {
  on_led_ranks(2, [](Ranks& ranks) {
    Engine engine("synth:tiny-bitnet", {.n_threads = 1}, &ranks);
    EXPECT_THROW(
        engine.backend().watch([](int, View2<const float>, View2<const float>, View2<const float>) {}, nullptr), Error);
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
