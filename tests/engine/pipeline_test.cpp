// Layers split over stages of ranks, each rank a thread: the same bits as without stages, on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <numeric>

#include "cases/rank_answers.h"
#include "cases/reference_data.h"

namespace ridge {
namespace {

constexpr char kReference[] = RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf";

void expect_same(const Answer& answer, const Answer& expected) {
  EXPECT_EQ(answer.prompt, expected.prompt);
  EXPECT_EQ(answer.decoded, expected.decoded);
  EXPECT_EQ(answer.greedy, expected.greedy);
}

std::vector<int32_t> text_of(int n, int vocab_size) {
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back(int32_t((7 + 31 * i + i * i % 13) % vocab_size));
  return ids;
}

/// Models of the parity tests, and their twins in one file.
class PipelineParity : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(PipelineParity, StagesAddNothing) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const auto& [name, gguf] = GetParam();
  const std::filesystem::path directory = *data / "parity/models" / name;
  const std::string path = (directory / gguf).native();
  const Golden golden(directory);
  const int n_greedy = int(golden.greedy.size());
  Engine alone(path, {.n_threads = 1});
  const Answer of_one = answer_of(alone, golden.ids, n_greedy, "f32");
  for (const int n_stages : {2, std::min(4, alone.info().n_layers)}) {
    SCOPED_TRACE(fmt::format("{} stages of a rank", n_stages));
    const Answer answer = answer_of_ranks(n_stages, path, golden.ids, n_greedy, "f32", "", n_stages);
    expect_same(answer, of_one);
    expect_golden(answer, golden);
  }
  SCOPED_TRACE("2 stages of 2 ranks");
  const Answer answer = answer_of_ranks(4, path, golden.ids, n_greedy, "f32", "", 2);
  expect_same(answer, answer_of_ranks(2, path, golden.ids, n_greedy));
  expect_golden(answer, golden);
}

INSTANTIATE_TEST_SUITE_P(
    Models, PipelineParity,
    testing::Values(std::pair("mistral", ""), std::pair("mistral_swa", ""), std::pair("llama3", ""),
                    std::pair("granite", ""), std::pair("phi3", ""), std::pair("phi3_longrope", ""),
                    std::pair("olmo2", ""), std::pair("gemma3", ""), std::pair("qwen3_moe", ""),
                    std::pair("qwen3_moe_dense", ""), std::pair("qwen2_moe", ""), std::pair("gpt_oss", ""),
                    std::pair("gpt_oss_mxfp4", ""), std::pair("deepseek_v3", ""), std::pair("glm_moe_dsa", ""),
                    std::pair("qwen3_5", ""), std::pair("qwen3_5_moe", "model-bf16.gguf"), std::pair("qwen3_next", ""),
                    std::pair("cohere2", ""), std::pair("mistral4", ""), std::pair("ernie4_5_moe", ""),
                    std::pair("smollm3", ""), std::pair("gemma4", ""), std::pair("gemma4_moe", "")),
    [](const auto& of) { return std::string(of.param.first); });

/// Kernels that round activations to integers, caches of every kind, forms of weighted rounding among them.
TEST(Pipeline, TheShippedModelHasTheSameBits) {
  for (const auto& [isa, kv] : {std::pair("", "f16"), {"", "rotor-3"}, {"scalar", "q8_0"}}) {
    Engine alone(kReference, {.n_threads = 1, .isa = isa});
    const std::vector<int32_t> ids = alone.tokenizer().encode("The capital of France is", true, false);
    const Answer expected = answer_of(alone, ids, 16, kv);
    SCOPED_TRACE(fmt::format("{} {}", isa, kv));
    expect_same(answer_of_ranks(4, kReference, ids, 16, kv, isa, 4), expected);
  }
}

TEST(Pipeline, BitNetToo) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const std::string path = (*data / "models/ridge-bitnet").native();
  Engine alone(path, {.n_threads = 1});
  const std::vector<int32_t> ids = text_of(30, alone.info().vocab_size);
  const Answer expected = answer_of(alone, ids, 8, "q8_0");
  expect_same(answer_of_ranks(2, path, ids, 8, "q8_0", "", 2), expected);
  expect_same(answer_of_ranks(4, path, ids, 8, "q8_0", "", 2), expected);
}

TEST(Pipeline, ShapesToo) {
  for (const std::string shape :
       {"tiny-64@weights=q8_0", "tiny-64@weights=f32@shared=1", "tiny-biases@weights=f32", "tiny-experts@weights=f32",
        "tiny-delta@weights=f32", "tiny-latent@weights=f32", "tiny-index@weights=f32", "tiny-bitnet"}) {
    SCOPED_TRACE(shape);
    const std::string path = "synth:" + shape;
    Engine alone(path, {.n_threads = 1});
    const std::vector<int32_t> ids = text_of(30, alone.info().vocab_size);
    expect_same(answer_of_ranks(2, path, ids, 8, "f32", "", 2), answer_of(alone, ids, 8, "f32"));
  }
}

TEST(Pipeline, ARankHasTheLayersOfItsStageAlone) {
  const Engine alone(kReference, {.n_threads = 1});
  const int n_layers = alone.info().n_layers;
  std::vector<int64_t> of_rank(4);
  on_ranks(4, [&](Ranks& ranks) {
    ranks.set_stages(4);
    Engine engine(kReference, {.n_threads = 1}, &ranks);
    const std::vector<KvLayerConfig> layers = layer_configs({.n_ctx = 200}, engine.plan());
    const auto pool = engine.open_pool(layers, 2, 1);
    const int first = ranks.rank() * n_layers / 4, end = (ranks.rank() + 1) * n_layers / 4;
    for (int i = 0; i < n_layers; ++i) {
      const bool is_here = i >= first && i < end;
      EXPECT_EQ(engine.weights().layers[size_t(i)].o.format != nullptr, is_here) << i;
      EXPECT_EQ(engine.weights().layers[size_t(i)].attn_norm.empty(), !is_here) << i;
      EXPECT_EQ(pool->memory().layout(i, KvSide::k).page_bytes() > 0, is_here) << i;
    }
    EXPECT_EQ(engine.info().n_layers, n_layers);
    EXPECT_EQ(engine.info().n_cached_layers, n_layers / 4);
    EXPECT_EQ(engine.info().n_stages, 4);
    of_rank[size_t(ranks.rank())] = engine.info().decode_weight_bytes;
  });
  EXPECT_EQ(std::accumulate(of_rank.begin(), of_rank.end(), int64_t(0)), alone.info().decode_weight_bytes);
}

/// Who watches sees every block on every rank, and what watching changes is what the next block reads.
TEST(Pipeline, EveryRankSeesEveryBlock) {
  using Streams = std::vector<std::vector<float>>;
  const auto watch = [](Engine& engine) {
    Streams seen;
    engine.backend().watch(nullptr, [&](int layer, Block block, View2<float> x) {
      seen.emplace_back(x.data, x.data + x.rows * x.cols);
      x(0, layer) += block == Block::mixer ? 0.5f : 0.25f;
    });
    const std::vector<int32_t> ids = text_of(12, engine.info().vocab_size);
    seen.push_back(answer_of(engine, ids, 1, "f16").decoded);
    engine.backend().watch(nullptr, nullptr);
    return seen;
  };
  Engine alone(kReference, {.n_threads = 1});
  const Streams expected = watch(alone);
  on_ranks(2, [&](Ranks& ranks) {
    ranks.set_stages(2);
    Engine engine(kReference, {.n_threads = 1}, &ranks);
    EXPECT_EQ(watch(engine), expected) << ranks.rank();
  });
}

/// So the steps of a long prompt overlap: the first stage is through with all of them before the second one begins.
TEST(Pipeline, AStepWithoutLogitsWaitsForNoLaterStage) {
  constexpr int kStep = 8, kSteps = 3, kTokens = kStep * kSteps + 1;
  std::promise<void> promise;
  const std::shared_future<void> first_is_through = promise.get_future().share();
  on_ranks(
      2,
      [&](Ranks& ranks) {
        ranks.set_stages(2);
        Engine engine(kReference, {.n_threads = 1}, &ranks);
        const std::vector<KvLayerConfig> layers = layer_configs({.n_ctx = kTokens}, engine.plan());
        const auto pool = engine.open_pool(layers, 1, 1);
        const auto outputs = engine.backend().make_outputs();
        const SeqId seq = pool->open().or_throw();
        const std::vector<int32_t> ids = text_of(kTokens, engine.info().vocab_size);
        const auto run = [&](int first, int n, LogitRows rows) {
          const SeqTokens of_seq{seq, n};
          pool->reserve(seq, n).or_throw();
          const auto tokens = std::span(ids).subspan(size_t(first), size_t(n));
          engine.backend().run({.tokens = tokens, .seqs = {&of_seq, 1}, .logits = rows}, *pool, *outputs);
        };
        if (!ranks.is_first()) {
          ASSERT_EQ(first_is_through.wait_for(std::chrono::seconds(60)), std::future_status::ready);
        }
        for (int step = 0; step < kSteps; ++step) run(step * kStep, kStep, LogitRows::none);
        if (ranks.is_first()) promise.set_value();
        run(kTokens - 1, 1, LogitRows::last);
        Engine alone(kReference, {.n_threads = 1});
        const std::vector<float> expected = answer_of(alone, ids, 0, "f16").prompt;
        const auto last = outputs->logits().row(0);
        EXPECT_TRUE(std::ranges::equal(last, std::span(expected).last(last.size()))) << ranks.rank();
      },
      30);
}

TEST(Pipeline, FewerLayersThanStagesAreRefused) {
  expect_refusal(8, "synth:tiny-64@layers=3", "--pp 4: the model has 3 layers: fewer than stages", 4);
}

}  // namespace
}  // namespace ridge
