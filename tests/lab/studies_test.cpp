// Greedy text, needles, and the study of attention outputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "cases/paths.h"
#include "engine/engine.h"
#include "lab/quality/attention_study.h"
#include "lab/quality/greedy.h"
#include "lab/quality/needle.h"

namespace ridge::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kVocab = 50;

/// Says the token after the last one, until it has decoded `right` tokens since reset(); from then on the one before.
class Counting : public Timeline {
 public:
  explicit Counting(int right) : right_(right) {}
  void reset() override { fed.clear(), n_decoded_ = 0; }
  void prefill(std::span<const int32_t> tokens) override { fed.insert(fed.end(), tokens.begin(), tokens.end()); }
  std::span<const float> decode(int32_t token) override {
    fed.push_back(token);
    logits_.assign(kVocab, 0.0f);
    logits_[size_t(n_decoded_++ < right_ ? token + 1 : token - 1) % kVocab] = 5;
    return logits_;
  }
  std::vector<int32_t> fed;

 private:
  int right_, n_decoded_ = 0;
  std::vector<float> logits_;
};

TEST(Greedy, TheLikeliestTokenFollowsAndTheLastIsNotFed) {
  Counting counting(100);
  EXPECT_THAT(greedy_tokens(counting, std::vector<int32_t>{1, 2, 3}, 5), ElementsAre(4, 5, 6, 7, 8));
  EXPECT_THAT(counting.fed, ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

TEST(Greedy, PromptsSpreadOverTheTextAndBeginWithBos) {
  std::vector<int32_t> text(100);
  for (int i = 0; i < 100; ++i) text[size_t(i)] = i;
  const auto prompts = pick_prompts(text, 3, 10, 77).or_throw();
  EXPECT_THAT(prompts[0], ElementsAre(77, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(prompts[1][1], 46);
  EXPECT_EQ(prompts[2].back(), 99);
  EXPECT_EQ(pick_prompts(text, 1, 100, {}).or_throw()[0].size(), 100u);
  EXPECT_FALSE(pick_prompts(text, 1, 101, {}));
  EXPECT_FALSE(pick_prompts(text, 92, 10, {}));
}

TEST(Needle, ProbesHoldTextNeedleTextCueAndAnswer) {
  std::vector<int32_t> text(40);
  for (int i = 0; i < 40; ++i) text[size_t(i)] = i;
  const std::vector<int32_t> needle{45, 46, 47};
  const NeedleProbe middle = make_probe({.n_ctx = 12, .copies = 1, .cue = 2}, text, needle, 0.5, 49);
  EXPECT_THAT(middle.tokens, ElementsAre(49, 1, 2, 3, 45, 46, 47, 4, 5, 45, 46, 47));
  EXPECT_EQ(middle.needle_at, 4);
  EXPECT_EQ(middle.first_answer, 11);
  EXPECT_THAT(make_probe({.n_ctx = 12, .copies = 1, .cue = 1}, text, needle, 0.0, {}).tokens,
              ElementsAre(0, 45, 46, 47, 1, 2, 3, 4, 5, 45, 46, 47));
  EXPECT_THAT(make_probe({.n_ctx = 12, .copies = 1, .cue = 1}, text, needle, 1.0, {}).tokens,
              ElementsAre(0, 1, 2, 3, 4, 5, 45, 46, 47, 45, 46, 47));
  EXPECT_THAT(make_probe({.n_ctx = 12, .copies = 2, .cue = 1}, text, needle, 0.0, {}).tokens,
              ElementsAre(0, 45, 46, 47, 45, 46, 47, 1, 2, 45, 46, 47));
  const NeedleProbe absent = make_probe({.n_ctx = 12, .copies = 3, .cue = 1}, text, needle, {}, {});
  EXPECT_THAT(absent.tokens, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 45, 46, 47));
  EXPECT_EQ(absent.first_answer, 10);
}

TEST(Needle, ATokenIsFoundWhereItIsTheLikeliest) {
  const NeedleProbe probe{.tokens = {9, 1, 2, 3, 4}, .needle_at = -1, .first_answer = 2};
  Counting right(100), wrong_at_the_end(2);
  EXPECT_THAT(found_tokens(right, probe), ElementsAre(true, true, true));
  EXPECT_THAT(right.fed, ElementsAre(9, 1, 2, 3));
  EXPECT_THAT(found_tokens(wrong_at_the_end, probe), ElementsAre(true, true, false));
}

/// The shipped model and a text, for what needs both.
class Studies : public testing::Test {
 protected:
  Studies() : model_(Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf", {.n_threads = 2})) {
    std::string story;
    for (int i = 0; i < 12; ++i) story += "Once upon a time, there was a little girl named Lily. She loved the park. ";
    corpus_.tokens = model_.tokenize(story);
  }
  Model model_;
  Corpus corpus_;
};

TEST_F(Studies, CapturedRowsAreThoseOfTheForwardPassInOrder) {
  const std::span<const int32_t> tokens = std::span(corpus_.tokens).first(70);
  const ModelInfo& info = model_.info();
  const std::vector<LayerRows> layers = capture_attention(model_, tokens, 32);
  ASSERT_EQ(int(layers.size()), info.n_layers);
  for (const LayerRows& rows : layers) {
    EXPECT_EQ(rows.k.size(), size_t(70 * info.n_kv_heads * info.head_dim));
    EXPECT_EQ(rows.v.size(), rows.k.size());
    EXPECT_EQ(rows.q.size(), size_t(32 * info.n_heads * info.head_dim));
  }
  // The first layer's rows depend on their own token and position only.
  const std::vector<LayerRows> shorter = capture_attention(model_, tokens.first(40), 1);
  for (size_t i = 0; i < shorter[0].k.size(); ++i) EXPECT_NEAR(shorter[0].k[i], layers[0].k[i], 1e-5) << i;
}

class AttentionStudy : public testing::Test {
 protected:
  static constexpr AttentionShape kShape{.n_heads = 4, .n_kv_heads = 2, .head_dim = 128};
  AttentionStudy() {
    Rng rng(3);
    rows_ = {.n_keys = 128, .n_queries = 16};
    rows_.q.resize(16 * 4 * 128), rows_.k.resize(128 * 2 * 128), rows_.v.resize(128 * 2 * 128);
    for (auto* part : {&rows_.q, &rows_.k, &rows_.v})
      for (float& x : *part) x = float(rng.normal());
  }
  static constexpr const char* kBare = "rotor-3:none:centre=off:window=0:sinks=0:scale=norm:rounding=nearest";
  AttentionError error(const std::string& kv, const LayerRows& rows, const AttentionShape& shape = kShape) {
    ModelPlan plan;
    plan.layers.resize(1);
    plan.layers[0].attention = {
        .n_heads = kShape.n_heads, .n_kv_heads = kShape.n_kv_heads, .head_dim = kShape.head_dim};
    const auto layers = layer_configs(session_options(parse_kv_choice(kv).or_throw(), 128, 1), plan);
    HostKvMemory memory(layers, {}, nullptr, std::max(1, pages_for(layers, 128)), 1);
    return attention_error(context_, shape, 0, rows, memory);
  }
  CpuContext context_{2, Isa::scalar};
  LayerRows rows_;
};

TEST_F(AttentionStudy, AnExactCacheHasNoErrorInWhateverSpace) {
  for (const char* kv : {"f32", "f32:hadamard", "f32:planar"}) {
    const AttentionError e = error(kv, rows_);
    EXPECT_LT(e.relative_l2(), 2e-5) << kv;  // float rounding of rotated rows
    EXPECT_NEAR(e.cosine(), 1, 1e-9) << kv;
    EXPECT_NEAR(e.norm_ratio(), 1, 1e-5) << kv;
    EXPECT_LT(e.rms_logit_error(), 1e-5) << kv;
    EXPECT_EQ(e.n_logits, 4 * (113 + 128) * 16 / 2);
  }
}

TEST_F(AttentionStudy, CentringIsExactButForItsF16Rows) {
  const AttentionError e = error("f32:hadamard:centre=on", rows_);
  EXPECT_LT(e.relative_l2(), 1e-3);  // positions before the calibration pass through f16
  EXPECT_LT(e.rms_logit_error(), 1e-3);
}

TEST_F(AttentionStudy, ErrorsFollowTheBits) {
  const AttentionError f16 = error("f16", rows_), q8 = error("q8_0", rows_), three = error(kBare, rows_);
  EXPECT_LT(f16.relative_l2(), 1e-3);
  EXPECT_LT(f16.relative_l2(), q8.relative_l2());
  EXPECT_LT(q8.relative_l2(), 0.02);
  EXPECT_LT(q8.rms_logit_error(), three.rms_logit_error());
  // sqrt of the quantiser's mean squared error, 0.186, is the error of the values and of the scores of unit normals.
  EXPECT_NEAR(three.rms_logit_error(), 0.186, 0.02);
  EXPECT_GT(three.relative_l2(), 0.15);
  EXPECT_NEAR(three.norm_ratio(), 1, 0.05);
}

TEST_F(AttentionStudy, ScoresAndTheirErrorsGrowWithTheScaleAndKeysOutsideOfTheWindowDoNotCount) {
  const AttentionError plain = error("q8_0:window=0", rows_);
  EXPECT_NEAR(plain.rms_logit(), 1, 0.05);  // of unit normals
  EXPECT_NEAR(plain.mean_query(), 1, 0.05);
  EXPECT_NEAR(plain.mean_key(), std::sqrt(128), 0.2);
  EXPECT_NEAR(plain.rms_logit_error(), plain.key_relative_l2() * plain.rms_logit(), 2e-4);
  EXPECT_GT(plain.mean_top_weight(), 1.0 / 128);
  AttentionShape shape = kShape;
  shape.scale = 1;
  const AttentionError large = error("q8_0:window=0", rows_, shape);
  EXPECT_NEAR(large.rms_logit(), std::sqrt(128) * plain.rms_logit(), 1e-3);
  EXPECT_NEAR(large.rms_logit_error(), std::sqrt(128) * plain.rms_logit_error(), 1e-4);
  EXPECT_EQ(large.key_relative_l2(), plain.key_relative_l2());
  EXPECT_GT(large.relative_l2(), 2 * plain.relative_l2());
  shape.window = 10;
  EXPECT_EQ(error("q8_0:window=0", rows_, shape).n_logits, 4 * 10 * 16);
}

/// The study over random tokens of a small model.
std::vector<AttentionResult> study_of(const Model& model, const std::string& caches) {
  Corpus corpus;
  Rng rng(1);
  for (int i = 0; i < 200; ++i) corpus.tokens.push_back(int32_t(rng.next() % 500));
  AttentionOptions options{.n_ctx = 100, .n_windows = 1, .n_queries = 8};
  options.candidates = parse_kv_list(caches).or_throw();
  return run_attention(model, corpus, options, {});
}

TEST(AttentionStudyOfKinds, LayersHaveHeadsWindowsAndScalesOfTheirOwn) {
  const Model model = Model::load("synth:tiny-gemma4@weights=f16", {.n_threads = 1});
  const ModelPlan& plan = model.engine().plan();
  const std::vector<AttentionResult> results = study_of(model, "f32,q8_0:window=0,rotor-3:window=0:sinks=0");
  ASSERT_EQ(results.size(), 3u);
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const AttentionPlan& attention = plan.layers[i].attention;
    EXPECT_EQ(attention.scale, 1);
    const int64_t seen = attention.window > 0 ? 8 * attention.window : (93 + 100) * 8 / 2;
    EXPECT_EQ(results[0].layers[i].n_logits, attention.n_heads * seen) << i;
    EXPECT_LT(results[0].layers[i].rms_logit_error(), 1e-5) << i;
    EXPECT_LT(results[1].layers[i].rms_logit_error(), results[2].layers[i].rms_logit_error()) << i;
  }
}

TEST(AttentionStudyOfKinds, ALayerReadsTheRowsThatAnotherOneKeeps) {
  const Model model = Model::load("synth:tiny-gemma4-e@weights=f16", {.n_threads = 1});
  const ModelPlan& plan = model.engine().plan();
  const std::vector<AttentionResult> results = study_of(model, "f32,q8_0:window=0,rotor-3:window=0:sinks=0");
  ASSERT_EQ(results.size(), 3u);
  int n_shared = 0;
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    for (const AttentionError& exact : {results[0].layers[i], results[0].layers_outlier[i]}) {
      EXPECT_LT(exact.relative_l2(), 1e-4) << i;
      EXPECT_GT(exact.exact2, 0) << i;
    }
    EXPECT_LT(results[1].layers[i].rms_logit_error(), results[2].layers[i].rms_logit_error()) << i;
    const int from = plan.layers[i].attention.kv_layer;
    if (from < 0) continue;
    ++n_shared;
    for (const AttentionResult& result : results) {
      EXPECT_EQ(result.layers[i].key_error2, result.layers[size_t(from)].key_error2) << i;
      EXPECT_EQ(result.layers[i].value_error2, result.layers[size_t(from)].value_error2) << i;
      EXPECT_NE(result.layers[i].logit2, result.layers[size_t(from)].logit2) << i;  // queries of its own
    }
  }
  EXPECT_EQ(n_shared, 3);
}

TEST(AttentionStudyOfKinds, LatentRowsAreKeysAndTheirFirstValuesTheValues) {
  const Model model = Model::load("synth:tiny-latent@weights=f16", {.n_threads = 1});
  const ModelPlan& plan = model.engine().plan();
  EXPECT_EQ(attention_shape(plan.layers[0]).n_out(), plan.layers[0].latent.rank);
  const std::vector<AttentionResult> results = study_of(model, "f32,q8_0:window=0,rotor-3:window=0:sinks=0");
  ASSERT_EQ(results.size(), 3u);
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const AttentionError &exact = results[0].layers[i], &planted = results[0].layers_outlier[i],
                         &q8 = results[1].layers[i], &three = results[2].layers[i];
    EXPECT_EQ(exact.n_logits, plan.layers[i].attention.n_heads * (93 + 100) * 8 / 2);
    EXPECT_LT(exact.relative_l2(), 1e-4) << i;
    EXPECT_LT(exact.value2, exact.key2) << i;  // without the part that RoPE turns
    EXPECT_NEAR(planted.exact2 / exact.exact2, 1, 1e-5) << i;
    EXPECT_LT(planted.relative_l2(), 1e-4) << i;
    EXPECT_LT(q8.relative_l2(), 0.02) << i;
    EXPECT_LT(q8.relative_l2(), three.relative_l2()) << i;
    EXPECT_GT(results[2].layers_outlier[i].rms_logit_error(), three.rms_logit_error()) << i;
  }
}

TEST(AttentionStudyOfKinds, RefusesWhatItWouldMisread) {
  for (const auto& [spec, why] : {std::pair("synth:tiny-index@weights=f16", "queries that choose their keys"),
                                  std::pair("synth:tiny-delta@weights=f16", "no mixer")}) {
    const Model model = Model::load(spec, {.n_threads = 1});
    try {
      study_of(model, "f16");
      ADD_FAILURE() << spec;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(why));
    }
  }
}

TEST_F(AttentionStudy, AnOutlierKeepsTheExactAnswerAndHurtsCoding) {
  LayerRows outlier = rows_;
  plant_outlier(kShape, outlier);
  EXPECT_NE(outlier.k, rows_.k);
  const AttentionError plain = error("f32", rows_), planted = error("f32", outlier);
  EXPECT_NEAR(plain.exact2 / planted.exact2, 1, 1e-5);
  EXPECT_GT(error(kBare, outlier).rms_logit_error(), 1.5 * error(kBare, rows_).rms_logit_error());
}

TEST_F(AttentionStudy, SumsAddUpToTheFiguresOfAllLayers) {
  AttentionError all = error("q8_0", rows_);
  const double one = all.relative_l2();
  all += all;
  EXPECT_NEAR(all.relative_l2(), one, 1e-12);
  const AttentionError shrunk{.error2 = 1, .exact2 = 1, .actual2 = 0.01, .dot = 0.1};
  EXPECT_NEAR(shrunk.norm_ratio(), 0.1, 1e-12);
  EXPECT_NEAR(shrunk.cosine(), 1, 1e-12);
}

TEST_F(Studies, AttentionRowsHaveEveryLayerAndTheTableBothHalves) {
  AttentionOptions options;
  options.n_ctx = 64;
  options.n_windows = 2;
  options.candidates = default_attention_list(model_.info().head_dim);
  int64_t done = 0, total = 0;
  AttentionHooks hooks;
  hooks.on_progress = [&](int64_t n, int64_t all) { done = n, total = all; };
  const std::vector<AttentionResult> results = run_attention(model_, corpus_, options, hooks);
  ASSERT_EQ(results.size(), options.candidates.size());
  EXPECT_EQ(done, total);
  std::vector<Row> rows;
  for (const AttentionResult& result : results) rows.push_back(columns_of(result).fields(result));
  EXPECT_EQ(int(rows[0]["attention"]["layers"].size()), model_.info().n_layers);
  EXPECT_LT(rows[0]["attention"]["relative_l2"], rows.back()["attention"]["relative_l2"]);
  EXPECT_THAT(attention_table(rows), HasSubstr("| f16 | 0.00"));
}

}  // namespace
}  // namespace ridge::lab
