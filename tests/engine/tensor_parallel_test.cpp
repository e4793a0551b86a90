// Models that ranks hold together, each rank a thread: golden logits, and what one rank makes of the same text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/rank_answers.h"
#include "cases/reference_data.h"

namespace ridge {
namespace {

using testing::HasSubstr;

/// A model and why 4 ranks cannot share it; empty: they can.
struct Shared {
  std::string name;
  std::string refusal_of_4 = "";
  std::string gguf = "";  ///< its twin in one file; empty: the directory
};
void PrintTo(const Shared& shared, std::ostream* out) { *out << shared.name << " " << shared.gguf; }

class TensorParallelParity : public testing::TestWithParam<Shared> {};

TEST_P(TensorParallelParity, RanksComputeTheGoldenLogits) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const std::filesystem::path directory = *data / "parity/models" / GetParam().name;
  const std::string path = (directory / GetParam().gguf).native();
  const Golden golden(directory);
  for (const int n : {2, 4}) {
    SCOPED_TRACE(fmt::format("{} ranks", n));
    if (n == 4 && !GetParam().refusal_of_4.empty()) expect_refusal(n, path, GetParam().refusal_of_4);
    else expect_golden(answer_of_ranks(n, path, golden.ids, int(golden.greedy.size())), golden);
  }
}

const std::string kTwoKeyHeads = "--tp 4: the gated delta rule has 2 key heads, which 4 ranks do not share evenly";
const std::string kOneKvHead = "--tp 4: attention has 2 heads and 1 KV heads, which 4 ranks do not share evenly",
                  kTwoKvHeads = "--tp 4: attention has 2 heads and 2 KV heads, which 4 ranks do not share evenly";
INSTANTIATE_TEST_SUITE_P(
    Models, TensorParallelParity,
    testing::Values(Shared{"mistral"}, Shared{"mistral_swa"}, Shared{"llama3"}, Shared{"granite", kOneKvHead},
                    Shared{"phi3", kOneKvHead}, Shared{"phi3_longrope", kTwoKvHeads}, Shared{"olmo2"}, Shared{"gemma3"},
                    Shared{"qwen3_moe"}, Shared{"qwen3_moe_dense"}, Shared{"qwen2_moe"}, Shared{"gpt_oss"},
                    Shared{"gpt_oss_mxfp4"}, Shared{"deepseek_v3"}, Shared{"deepseek_v32"}, Shared{"glm_moe_dsa"},
                    Shared{"qwen3_5", kTwoKeyHeads}, Shared{"qwen3_5", kTwoKeyHeads, "model-f32.gguf"},
                    Shared{"qwen3_5_moe", kTwoKeyHeads}, Shared{"qwen3_5_moe", kTwoKeyHeads, "model-bf16.gguf"},
                    Shared{"qwen3_5_mtp", kTwoKeyHeads}, Shared{"qwen3_next", kTwoKeyHeads},
                    Shared{"qwen3_next", kTwoKeyHeads, "model-bf16.gguf"}, Shared{"mixtral"}, Shared{"seed_oss"},
                    Shared{"glm4_moe"}, Shared{"glm4_moe_lite"}, Shared{"minimax_m2"}, Shared{"ernie4_5_moe"},
                    Shared{"smollm3"}, Shared{"exaone4"}, Shared{"hunyuan_v1_dense"}, Shared{"ministral3"},
                    Shared{"mistral4"}, Shared{"cohere2"}, Shared{"gemma4"}, Shared{"gemma4_moe"}, Shared{"gemma4_e"}),
    [](const auto& of) { return of.param.name + (of.param.gguf.empty() ? "" : "_gguf"); });

const std::vector<int32_t> kParallelIds{1,   403, 407, 261, 378, 411, 277, 299, 265, 302, 305, 286,
                                        412, 426, 396, 272, 410, 413, 286, 302, 270, 355, 432, 262,
                                        381, 300, 285, 347, 273, 260, 410, 288, 315, 290};

std::vector<int32_t> within(int vocab_size) {
  std::vector<int32_t> ids = kParallelIds;
  for (int32_t& id : ids) id %= vocab_size;
  return ids;
}

/// Where activations or queries are rounded to integers, another order of a sum can end one step away: texts stay the
/// same as long as no two tokens are nearly as likely. The scalar kernels round neither.
TEST(TensorParallel, TheShippedModelWritesTheSameText) {
  const std::string path = RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf";
  for (const auto& [isa, kv] : {std::pair("", "f16"), {"scalar", "f16"}, {"scalar", "q8_0"}}) {
    Engine alone(path, {.isa = isa});
    const std::vector<int32_t> ids = alone.tokenizer().encode("The capital of France is", true, false);
    const Answer expected = answer_of(alone, ids, 16, kv);
    for (const int n : {2, 4})
      EXPECT_EQ(answer_of_ranks(n, path, ids, 16, kv, isa).greedy, expected.greedy) << isa << " " << kv << " " << n;
  }
}

/// BitNet's ranks cut no row: each value is computed as in a process alone.
TEST(TensorParallel, BitNetIsBitForBitThatOfOneProcess) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const std::string path = (*data / "models/ridge-bitnet").native();
  Engine alone(path, {});
  const std::vector<int32_t> ids = within(alone.info().vocab_size);
  const Answer expected = answer_of(alone, ids, 24, "q8_0");
  for (const int n : {2, 4}) {
    const Answer answer = answer_of_ranks(n, path, ids, 24, "q8_0");
    EXPECT_EQ(answer.prompt, expected.prompt) << n;
    EXPECT_EQ(answer.decoded, expected.decoded) << n;
    EXPECT_EQ(answer.greedy, expected.greedy) << n;
  }
}

/// Shapes are made as rows, cut, then packed for the processor's own kernels: the panels of a whole one are packed at
/// once.
TEST(TensorParallel, ShapesAreCutBeforeTheyArePacked) {
  for (const std::string shape : {"tiny-64@weights=f32", "tiny-64@weights=f32@shared=1", "tiny-biases@weights=f32",
                                  "tiny-experts@weights=f32", "tiny-delta@weights=f32", "tiny-latent@weights=f32",
                                  "tiny-bitnet", "tiny-gemma4-moe@weights=f32", "tiny-gemma4-e@weights=f32"}) {
    const std::string path = "synth:" + shape;
    Engine alone(path, {});
    const std::vector<int32_t> ids = within(alone.info().vocab_size);
    const Answer expected = answer_of(alone, ids, 8, "f32"), answer = answer_of_ranks(2, path, ids, 8);
    ASSERT_EQ(answer.decoded.size(), expected.decoded.size());
    double worst = 0;
    for (size_t i = 0; i < expected.decoded.size(); ++i)
      worst = std::max({worst, std::abs(double(answer.decoded[i]) - expected.decoded[i]),
                        std::abs(double(answer.prompt[i]) - expected.prompt[i])});
    EXPECT_LT(worst, shape == "tiny-bitnet" ? 1e-30 : kRankBound) << shape;
    EXPECT_EQ(answer.greedy, expected.greedy) << shape;
  }
}

TEST(TensorParallel, AnotherModelOrInstructionSetIsNoticed) {
  const std::string path = RIDGE_SOURCE_DIR "/models/stories260K.gguf";
  on_ranks(2, [&](Ranks& ranks) {
    try {
      const Engine engine(ranks.is_first() ? path : RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf", {.n_threads = 1},
                          &ranks);
      ADD_FAILURE() << "two models are one";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the model of rank 1 is "));
    }
  });
  on_ranks(2, [&](Ranks& ranks) {
    try {
      const Engine engine(path, {.n_threads = 1, .isa = ranks.is_first() ? "scalar" : ""}, &ranks);
      EXPECT_EQ(detect_isa(), Isa::scalar);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("that of rank 0 is scalar"));
    }
  });
}

}  // namespace
}  // namespace ridge
