// Models whose layers groups of devices share: the bits of one device, and of ranks without stages.
#include <gmock/gmock.h>

#include "cases/reference_data.h"
#include "cases/temp_dir.h"
#include "engine/decode/text.h"
#include "engine/engine.h"
#include "gpu/device_data.h"
#include "gpu/device_query.h"
#include "gpu/memory_use.h"
#include "gpu/model_data.h"
#include "lab/decide/plan.h"

namespace ridge {
namespace {

const LoadOptions kOne{.device = "cuda"}, kTwoStages{.device = "cuda:0,1", .n_stages = 2, .rank_timeout_s = 20},
    kTwoRanks{.device = "cuda:0,1", .rank_timeout_s = 20},
    kTwoStagesOfTwo{.device = "cuda:0,1,2,3", .n_stages = 2, .rank_timeout_s = 20};

class StagesCuda : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (!IsSkipped() && n_devices() < 2) GTEST_SKIP() << "one device is here";
  }
  static int n_devices() { return int(gpu::query_devices().devices.size()); }
};

struct Staged {
  const char *spec, *kv;
  int n = 40;
};
class StagesCudaModels : public StagesCuda, public testing::WithParamInterface<Staged> {
 protected:
  std::vector<float> logits(const LoadOptions& place) {
    const Model model = Model::load(GetParam().spec, place);
    EXPECT_EQ(model.info().n_stages, place.n_stages);
    return all_logits(model, tokens_of(GetParam().n, model.info().vocab_size, 1), GetParam().kv, GetParam().kv);
  }
};

TEST_P(StagesCudaModels, LogitsAreThoseOfOneDeviceBitForBit) { EXPECT_EQ(logits(kTwoStages), logits(kOne)); }

INSTANTIATE_TEST_SUITE_P(
    Shapes, StagesCudaModels,
    testing::Values(Staged{"synth:tiny@weights=f32", "f32"}, Staged{"synth:tiny-64@weights=int4_g128", "rotor-3", 150},
                    Staged{"synth:tiny-gemma@weights=f32", "f16", 90},
                    Staged{"synth:tiny-experts@weights=q8_0", "q8_0"}, Staged{"synth:tiny-oss@weights=f32", "f32", 60},
                    Staged{"synth:tiny-latent@weights=f16", "f16"}, Staged{"synth:tiny-delta@weights=f32", "f16", 60},
                    Staged{"synth:tiny-bitnet", "f16"}));

class StagesOfRanksCuda : public StagesCudaModels {};

TEST_P(StagesOfRanksCuda, LogitsAreThoseOfRanksBitForBit) {
  if (n_devices() < 4) GTEST_SKIP() << n_devices() << " devices are here";
  EXPECT_EQ(logits(kTwoStagesOfTwo), logits(kTwoRanks));
}

INSTANTIATE_TEST_SUITE_P(Shapes, StagesOfRanksCuda,
                         testing::Values(Staged{"synth:tiny-64@weights=int4_g128", "rotor-3", 150},
                                         Staged{"synth:tiny-delta@weights=f32", "f16"},
                                         Staged{"synth:tiny-bitnet", "f16"}));

/// Norms of all heads together, which ranks of a stage add up alone.
TEST_F(StagesCuda, NormsOfAllHeadsTogetherAreThoseWithoutStages) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const auto logits = [&](const LoadOptions& place) {
    const Model model = Model::load((*data / "parity/models/olmo2").native(), place);
    return all_logits(model, tokens_of(30, model.info().vocab_size, 1), "f16", "f16");
  };
  EXPECT_EQ(logits(kTwoStages), logits(kOne));
  if (n_devices() < 4) return;
  EXPECT_EQ(logits(kTwoStagesOfTwo), logits(kTwoRanks));
}

/// As many stages as layers, and a number of layers that stages do not share evenly.
TEST_F(StagesCuda, ThreeStagesOfSevenLayers) {
  if (n_devices() < 3) GTEST_SKIP() << n_devices() << " devices are here";
  const LoadOptions three{.device = "cuda:2,0,1", .n_stages = 3, .rank_timeout_s = 20};
  const Model one = Model::load("synth:tiny-gemma@weights=f32", kOne),
              stages = Model::load("synth:tiny-gemma@weights=f32", three);
  EXPECT_THAT(stages.info().device, testing::StartsWith("cuda:2,0,1 "));
  const auto tokens = tokens_of(30, one.info().vocab_size, 1);
  EXPECT_EQ(all_logits(stages, tokens, "q8_0", "q8_0"), all_logits(one, tokens, "q8_0", "q8_0"));
}

/// Steps that feed themselves on all devices.
TEST_F(StagesCuda, SampledTextsAreThoseOfOneDevice) {
  const char* spec = "synth:tiny@weights=f32";
  const Model one = Model::load(spec, kOne), stages = Model::load(spec, kTwoStages);
  const auto prompt = tokens_of(61, one.info().vocab_size, 1);
  SamplerOptions greedy, sampled;
  greedy.temperature = 0;
  sampled.seed = 7;
  for (const SamplerOptions& options : {greedy, sampled}) {
    std::vector<std::vector<int32_t>> generated;
    for (const Model* model : {&one, &stages}) {
      Session session(*model, {.n_ctx = 100, .n_ubatch = 23, .k = {.format = "f16"}, .v = {.format = "f16"}});
      session.prefill(prompt);
      std::vector<int32_t>& tokens = generated.emplace_back();
      const auto take = [&](int32_t token) {
        tokens.push_back(token);
        return tokens.size() != 5;
      };
      EXPECT_EQ(session.generate(options, prompt, 1000, take), 5);
      session.decode(tokens.back());
      EXPECT_EQ(session.generate(options, prompt, 10, take), 10);
    }
    EXPECT_EQ(generated[0], generated[1]) << "temperature " << options.temperature;
  }
}

/// Hidden states come from the last stage to the head on the first device. Ranks without stages add in another order.
TEST_F(StagesCuda, AnMtpHeadProposesOneDevicesTokens) {
  const char* spec = "synth:tiny@weights=f32@mtp=1";
  const SessionOptions options{.n_ctx = 100, .k = {.format = "f16"}, .v = {.format = "f16"}};
  std::vector<std::vector<int32_t>> texts;
  std::vector<SpecReport> reports;
  for (const LoadOptions& place : {kOne, kTwoStages, kTwoRanks}) {
    const Model model = Model::load(spec, place);
    const auto prompt = tokens_of(20, model.info().vocab_size, 1);
    Speculation speculation(mtp_proposers(model, "", options)(), 3, false);
    Session session(model, options);
    session.speculate(&speculation);
    session.prefill(prompt);
    std::vector<int32_t>& text = texts.emplace_back();
    const SamplerOptions greedy{.temperature = 0};
    session.generate(greedy, prompt, 20, [&](int32_t token) {
      text.push_back(token);
      return true;
    });
    reports.push_back(speculation.report());
  }
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
  for (const SpecReport& report : reports) EXPECT_GT(report.n_proposed, 0);
  EXPECT_EQ(reports[0].n_accepted, reports[1].n_accepted) << "the head has read the same hidden states";
}

/// Sequences of one pool: what caches hold, how it moves, and what is counted of it.
TEST_F(StagesCuda, SequencesAreThoseOfOneDevice) {
  constexpr float kOrder = 2 * 2 * kPagePositions * 0x1p-24f;  // rows of a page's two heads are counted in any order
  const char* spec = "synth:tiny-64@weights=f32";
  for (const char* format : {"f16", "rotor-3"}) {
    Engine one(spec, kOne), stages(spec, kTwoStages);
    const std::vector<KvLayerConfig> layers =
        layer_configs({.n_ctx = 256, .k = {.format = format}, .v = {.format = format}}, one.plan());
    struct Place {
      Engine& engine;
      std::unique_ptr<SequencePool> pool;
      std::unique_ptr<Outputs> outputs;
      std::vector<float> run(std::span<const SeqTokens> seqs, std::span<const int32_t> tokens) const {
        for (const SeqTokens& s : seqs) pool->reserve(s.seq, s.n_tokens).or_throw();
        engine.backend().run({.tokens = tokens, .seqs = seqs, .logits = LogitRows::all}, *pool, *outputs);
        const View2<const float> logits = outputs->logits();
        return {logits.data, logits.data + logits.rows * logits.cols};
      }
    };
    const Place alone{one, one.open_pool(layers, 12, 4), one.backend().make_outputs()},
        staged{stages, stages.open_pool(layers, 12, 4), stages.backend().make_outputs()};
    const int64_t n_bytes = staged.pool->memory().allocated_bytes(), of_alone = alone.pool->memory().allocated_bytes();
    EXPECT_GE(n_bytes, of_alone);
    EXPECT_LT(n_bytes, of_alone + 4096) << "sides of other stages have counts of pages alone";
    const SeqId a = staged.pool->open().or_throw(), b = staged.pool->open().or_throw();
    ASSERT_EQ(alone.pool->open().or_throw(), a);
    ASSERT_EQ(alone.pool->open().or_throw(), b);
    for (const auto& [n_a, n_b] : {std::pair(1, 20), {130, 1}, {1, 1}, {1, 1}, {3, 2}, {1, 1}}) {
      const std::vector<SeqTokens> seqs{{a, n_a}, {b, n_b}};
      const auto tokens = tokens_of(n_a + n_b, 512, uint64_t(n_a));
      EXPECT_EQ(staged.run(seqs, tokens), alone.run(seqs, tokens)) << format << ", " << n_a << " and " << n_b;
    }
    const SequenceImage image = staged.pool->save(a), of_one = alone.pool->save(a);
    ASSERT_EQ(image.sides.size(), of_one.sides.size());
    for (size_t i = 0; i < image.sides.size(); ++i)
      EXPECT_EQ(image.sides[i].bytes, of_one.sides[i].bytes) << format << ", side " << i;
    for (int layer = 0; layer < ssize(layers); ++layer)
      for (const KvSide side : kKvSides) {
        const PageCounts got = staged.pool->memory().counts(layer, side, 0),
                         expected = alone.pool->memory().counts(layer, side, 0);
        EXPECT_NEAR(got.norm2 / expected.norm2, 1, kOrder) << format << ", layer " << layer;
        EXPECT_NEAR(got.error2 / expected.error2, 1, kOrder) << format << ", layer " << layer;
      }
    const SeqId there = alone.pool->load(image).or_throw(), back = staged.pool->load(of_one).or_throw();
    const std::vector<int32_t> token{9};
    const auto expected = alone.run(std::vector<SeqTokens>{{a, 1}}, token);
    EXPECT_EQ(alone.run(std::vector<SeqTokens>{{there, 1}}, token), expected) << format;
    EXPECT_EQ(staged.run(std::vector<SeqTokens>{{back, 1}}, token), expected) << format;
  }
}

/// Files that ranks in stages wrote go on anywhere, and theirs here.
TEST_F(StagesCuda, StateFilesGoFromAnyRanksToAnyOthers) {
  if (n_devices() < 4) GTEST_SKIP() << n_devices() << " devices are here";
  const char* spec = "synth:tiny@weights=f32";
  const SessionOptions options{.n_ctx = 100, .k = {.format = "q8_0"}, .v = {.format = "q8_0"}};
  const TempDir directory;
  std::vector<Model> models;
  for (const LoadOptions& place : {LoadOptions{.n_threads = 1}, kOne, kTwoRanks, kTwoStages, kTwoStagesOfTwo})
    models.push_back(Model::load(spec, place));
  const auto prompt = tokens_of(50, models[0].info().vocab_size, 1);
  std::vector<std::string> files;
  for (const Model& model : models) {
    Session session(model, options);
    session.prefill(prompt);
    session.save(files.emplace_back(directory / std::to_string(files.size())));
  }
  const auto last_row = [&](const Model& model, const std::string& file) {
    Session session(model, options);
    session.restore(file);
    EXPECT_EQ(session.n_past(), 50);
    const auto row = session.decode(prompt[0]);
    return std::vector<float>(row.begin(), row.end());
  };
  for (const std::string& file : files) {
    const std::vector<float> alone = last_row(models[1], file), ranks = last_row(models[2], file);
    EXPECT_EQ(last_row(models[3], file), alone) << file;
    EXPECT_EQ(last_row(models[4], file), ranks) << file;
  }
}

/// Whoever watches sees every block's input once, and all stages go on with what it was made.
TEST_F(StagesCuda, BlocksAreShownAndTakenByAllStages) {
  const char* spec = "synth:tiny-64@weights=f32";
  std::vector<std::vector<float>> shown, logits;
  for (const LoadOptions& place : {kOne, kTwoStages}) {
    Engine engine(spec, place);
    const auto pool = engine.open_pool(
        layer_configs({.n_ctx = 64, .k = {.format = "f16"}, .v = {.format = "f16"}}, engine.plan()), 4, 1);
    const auto outputs = engine.backend().make_outputs();
    const SeqTokens seq{pool->open().or_throw(), 5};
    pool->reserve(seq.seq, seq.n_tokens).or_throw();
    std::vector<float>& all = shown.emplace_back();
    engine.backend().watch(nullptr, [&](int, Block, View2<float> x) {
      all.insert(all.end(), x.data, x.data + x.rows * x.cols);
      for (int64_t i = 0; i < x.rows * x.cols; ++i) x.data[i] *= 0.5f;
    });
    engine.backend().run({.tokens = tokens_of(5, 512, 3), .seqs = {&seq, 1}, .logits = LogitRows::all, .hidden = true},
                         *pool, *outputs);
    const View2<const float> rows = outputs->logits(), hidden = outputs->hidden();
    std::vector<float>& seen = logits.emplace_back(rows.data, rows.data + rows.rows * rows.cols);
    seen.insert(seen.end(), hidden.data, hidden.data + hidden.rows * hidden.cols);
  }
  EXPECT_EQ(shown[1], shown[0]);
  EXPECT_EQ(logits[1], logits[0]);
}

/// A device has the weights of its stage alone, and a plan counts those of the stage that has most.
TEST_F(StagesCuda, WeightsAreThePlansOfEachStage) {
  const char* spec = "synth:tiny@layers=3@weights=f32";
  const auto weights = [] { return gpu::memory_use()[size_t(gpu::MemoryOf::weights)].bytes; };
  const int64_t before = weights();
  const Model stages = Model::load(spec, kTwoStages);
  const int64_t of_stages = weights() - before;
  const Model one = Model::load(spec, kOne);
  const int64_t of_one = weights() - before - of_stages;
  const lab::PlannedModel model = lab::plan_model(spec, kOne, 2, 2);
  EXPECT_EQ(model.config().here.first, 1) << "two of three layers are in the second stage";
  const int64_t planned = lab::plan_memory(model, {}, 100, 1, 32).of("weights");
  EXPECT_LT(planned, of_stages);
  EXPECT_GT(2 * planned, of_stages);
  EXPECT_LT(of_stages - of_one, 4096) << "norms of the output and angles of RoPE are on both";
}

TEST_F(StagesCuda, WhatDevicesDoNotFormIsRefusedByName) {
  const auto message_of = [](const std::string& spec, const std::string& device, int n_stages) -> std::string {
    try {
      Model::load(spec, {.device = device, .n_stages = n_stages});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
      return error.what();
    }
    return "loaded";
  };
  using testing::HasSubstr;
  EXPECT_THAT(message_of("synth:tiny", "cuda:0,1,2", 2), HasSubstr("--pp 2: 3 devices do not form stages"));
  EXPECT_THAT(message_of("synth:tiny", "cuda", 2), HasSubstr("--pp 2: 1 device does not form stages"));
  EXPECT_THAT(message_of("synth:tiny", "cpu", 2), HasSubstr("--pp 2: 0 devices do not form stages"));
  EXPECT_THAT(message_of("synth:tiny", "cuda:0,1", 0), HasSubstr("--pp 0"));
  EXPECT_THAT(message_of("synth:tiny@layers=1", "cuda:0,1", 2), HasSubstr("has 1 layers: fewer than stages"));
}

}  // namespace
}  // namespace ridge
