// Texts of a pool that ranks hold together, each rank a thread: where the first one leads, and where the test makes the
// same calls on every rank.
#pragma once

#include "cases/pool_walk.h"
#include "cases/thread_ranks.h"
#include "engine/engine.h"
#include "engine/kv_choice.h"
#include "engine/lead.h"

namespace ridge {

/// Calls body() on the first of n ranks in n_stages stages, which leads the others.
inline void on_led_ranks(int n, const std::function<void(Ranks&)>& body, int n_stages = 1) {
  on_ranks(n, [&](Ranks& ranks) {
    ranks.set_stages(n_stages);
    ranks.be_led();
    if (!ranks.is_first()) return follow(ranks);
    body(ranks);
    lead_end(ranks);
  });
}

/// A model and caches to open over it.
struct LedCase {
  std::string name, shape, kv;
  int n_ranks = 2;
  std::string device = "cpu";
  int n_stages = 1;
};
inline void PrintTo(const LedCase& of, std::ostream* out) { *out << of.name; }

class Texts final : public PoolWalk {
 public:
  static constexpr int kContext = 400;

  Texts(const LedCase& of, Ranks& ranks)
      : engine_("synth:" + of.shape, {.device = of.device, .n_threads = 1, .isa = of.device == "cpu" ? "scalar" : ""},
                &ranks) {
    SessionOptions options{.n_ctx = kContext, .n_ubatch = 64};
    options.k = options.v = parse_kv_side(of.kv).or_throw();
    layers_ = layer_configs(options, engine_.plan());
    pool_ = engine_.open_pool(layers_, pool_pages(layers_, kContext, 3, 64), 5, kContext);
    outputs_ = engine_.backend().make_outputs();
  }

  ~Texts() override { pool_.reset(); }  // the engine must outlive it

  /// Null where this rank leads.
  const ModelSlice* slice() const { return engine_.slice(); }
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

  void turn_row(int layer, KvSide side, int n_positions, float* row) override {
    engine_.turn_row(layer, side, kContext, n_positions, row);
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
inline std::vector<Moment> moments_of(Texts& texts, int n_steps = 150) {
  constexpr int kEvery = 15;
  std::vector<Moment> all;
  Rng rng(1);
  for (int i = 0; i < n_steps; ++i) {
    const std::string line = texts.step(rng);
    all.push_back({line + " | " + texts.state(), texts.logits(), {}});
    if (i % kEvery == 0) all.back().images = texts.images();
  }
  return all;
}

/// Both ways must make the same bits, and each rank must hold its part of the images that the leading one reads.
inline void expect_led_like_alike(const LedCase& of, int n_steps = 150) {
  std::vector<Moment> led;
  std::vector<KvLayouts> whole;
  on_led_ranks(
      of.n_ranks,
      [&](Ranks& ranks) {
        Texts texts(of, ranks);
        led = moments_of(texts, n_steps);
        const auto layouts = texts.pool().memory().layouts();
        whole.assign(layouts.begin(), layouts.end());
      },
      of.n_stages);
  on_ranks(of.n_ranks, [&](Ranks& ranks) {
    ranks.set_stages(of.n_stages);
    Texts texts(of, ranks);
    const std::vector<Moment> own = moments_of(texts, n_steps);
    const std::vector<SidePart> part = side_parts(*texts.slice(), ranks.rank());
    ASSERT_EQ(own.size(), led.size());
    for (size_t i = 0; i < own.size(); ++i) {
      SCOPED_TRACE(fmt::format("rank {}, step {}: {}", ranks.rank(), i, own[i].line));
      ASSERT_EQ(led[i].line, own[i].line);
      ASSERT_EQ(led[i].logits, own[i].logits);
      ASSERT_EQ(led[i].images.size(), own[i].images.size());
      for (size_t s = 0; s < own[i].images.size(); ++s)
        ASSERT_TRUE(same(cut_image(whole, led[i].images[s], part), own[i].images[s])) << s;
    }
  });
}

}  // namespace ridge
