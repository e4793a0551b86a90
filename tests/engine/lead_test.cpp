// Ranks that are led: what the first one makes of its calls is, bit for bit, what ranks make that all have the command.
#include "engine/lead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/pool_walk.h"
#include "cases/thread_ranks.h"
#include "engine/engine.h"
#include "engine/kv_choice.h"
#include "engine/rank_state.h"

namespace ridge {
namespace {

using testing::HasSubstr;

constexpr int kContext = 400;

/// Calls body() on the first of n ranks, which leads the others.
void on_led_ranks(int n, const std::function<void(Ranks&)>& body) {
  on_ranks(n, [&](Ranks& ranks) {
    ranks.be_led();
    if (!ranks.is_first()) return follow(ranks);
    body(ranks);
    lead_end(ranks);
  });
}

/// A model and caches to open over it.
struct Case {
  std::string name, shape, kv;
  int n_ranks = 2;
};
void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }

class Texts final : public PoolWalk {
 public:
  Texts(const Case& of, Ranks& ranks) : engine_("synth:" + of.shape, {.n_threads = 1, .isa = "scalar"}, &ranks) {
    SessionOptions options{.n_ctx = kContext, .n_ubatch = 64};
    options.k = options.v = parse_kv_side(of.kv).or_throw();
    layers_ = layer_configs(options, engine_.plan());
    pool_ = engine_.open_pool(layers_, pool_pages(layers_, kContext, 3, 64), 5, kContext);
    outputs_ = engine_.backend().make_outputs();
  }

  ~Texts() override { pool_.reset(); }  // the engine must outlive it

  /// Images of all heads, on the first rank.
  std::vector<SequenceImage> whole_images() {
    std::vector<SequenceImage> all;
    for (SequenceImage& own : images()) {
      std::optional<SequenceImage> image = std::move(own);
      if (engine_.ranks()) image = gather_image({*engine_.ranks(), *engine_.slice(), layers_}, std::move(*image));
      if (image) all.push_back(std::move(*image));
    }
    return all;
  }
  const std::vector<float>& logits() const { return logits_; }

 private:
  /// In one step with a token of another sequence.
  Status append(SeqId seq, uint64_t, Rng& rng, int n) override {
    std::vector<SeqTokens> seqs{{seq, n}};
    for (const SeqId other : sequences_)
      if (other != seq && !pool_->is_parked(other) && pool_->length(other) < kContext) {
        seqs.push_back({other, 1});
        break;
      }
    std::vector<int32_t> tokens;
    for (const SeqTokens& of : seqs) {
      if (pool_->length(of.seq) + of.n_tokens > kContext) return fail(ErrorKind::usage, "the context is full");
      RIDGE_TRY_STATUS(pool_->reserve(of.seq, of.n_tokens));
      for (int i = 0; i < of.n_tokens; ++i) tokens.push_back(int32_t(rng.next() % uint64_t(engine_.plan().vocab_size)));
    }
    engine_.backend().run({.tokens = tokens, .seqs = seqs, .logits = LogitRows::last}, *pool_, *outputs_);
    const View2<const float> rows = outputs_->logits();
    logits_.assign(rows.data, rows.data + rows.rows * rows.cols);
    return {};
  }

  void turn_key(int layer, int n_positions, float* row) override {
    engine_.turn_key(layer, kContext, n_positions, row);
  }

  Engine engine_;
  std::vector<KvLayerConfig> layers_;
  std::unique_ptr<Outputs> outputs_;
  std::vector<float> logits_;
};

/// After one operation.
struct Moment {
  std::string line;
  std::vector<float> logits;
  std::vector<SequenceImage> images;
};
std::vector<Moment> moments_of(Texts& texts) {
  constexpr int kSteps = 150, kEvery = 15;
  std::vector<Moment> all;
  Rng rng(1);
  for (int i = 0; i < kSteps; ++i) {
    const std::string line = texts.step(rng);
    all.push_back({line + " | " + texts.state(), texts.logits(), {}});
    if (i % kEvery == 0) all.back().images = texts.whole_images();
  }
  return all;
}

class LedRanks : public testing::TestWithParam<Case> {};

TEST_P(LedRanks, DoAndHoldWhatRanksDoThatAllHaveTheCommand) {
  const Case& of = GetParam();
  std::vector<Moment> expected, actual;
  on_ranks(of.n_ranks, [&](Ranks& ranks) {
    Texts texts(of, ranks);
    const std::vector<Moment> own = moments_of(texts);
    if (ranks.is_first()) expected = own;
  });
  on_led_ranks(of.n_ranks, [&](Ranks& ranks) {
    Texts texts(of, ranks);
    actual = moments_of(texts);
  });
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].line, expected[i].line) << i;
    ASSERT_EQ(actual[i].logits, expected[i].logits) << i << " " << actual[i].line;
    ASSERT_EQ(actual[i].images.size(), expected[i].images.size());
    for (size_t s = 0; s < actual[i].images.size(); ++s)
      ASSERT_TRUE(same(actual[i].images[s], expected[i].images[s])) << i << " " << actual[i].line;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Caches, LedRanks,
    testing::Values(Case{"exact", "tiny@weights=f32", "f16"}, Case{"weighted", "tiny@weights=f32", "rotor-3"},
                    Case{"shared_heads", "tiny@weights=f32", "q8_0", 4},
                    Case{"sliding", "tiny-gemma@weights=f32", "q8_0"}, Case{"states", "tiny-delta@weights=f32", "q8_0"},
                    Case{"latent", "tiny-latent@weights=f32", "p8"},
                    Case{"experts", "tiny-experts@weights=f32", "rotor-4"}, Case{"bitnet", "tiny-bitnet", "q8_0"}),
    [](const auto& of) { return of.param.name; });

/// A message of its own for what every rank must answer; else calls wait for the next step.
TEST(LedRanks, CountTheCacheOfAll) {
  const Case of{"", "tiny@weights=f32", "q8_0", 4};
  std::vector<PageCounts> alone, led;
  const auto counts = [&](Ranks& ranks, std::vector<PageCounts>& sums) {
    Texts texts(of, ranks);
    Rng rng(3);
    for (int i = 0; i < 40; ++i) texts.step(rng);
    EXPECT_EQ(texts.pool().memory().saturated(0, true), 0);
    sums = texts.pool().memory().counts(0, true);
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
