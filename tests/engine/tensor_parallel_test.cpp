// Models that ranks hold together, each rank a thread: golden logits, and what one rank makes of the same text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/golden_logits.h"
#include "cases/reference_data.h"
#include "cases/thread_ranks.h"
#include "engine/engine.h"
#include "io/safetensors.h"

namespace ridge {
namespace {

using testing::HasSubstr;

/// What one rank, or a process alone, makes of a text.
struct Answer {
  std::vector<float> prompt, decoded;  ///< logits of all positions, as a prompt and token by token
  std::vector<int32_t> greedy;         ///< ids behind the text
};

Answer answer_of(Engine& engine, std::span<const int32_t> ids, int n_greedy, const std::string& kv) {
  constexpr int kStep = 20;
  SessionOptions options{.n_ctx = int(ids.size()) + n_greedy, .n_ubatch = kStep};
  options.k.format = options.v.format = kv;
  const std::vector<KvLayerConfig> layers = layer_configs(options, engine.plan());
  const auto pool = engine.open_pool(layers, pool_pages(layers, options.n_ctx, 1, kStep), 1, options.n_ctx);
  const auto outputs = engine.backend().make_outputs();
  SeqId seq = pool->open().or_throw();
  const auto run = [&](std::span<const int32_t> tokens, std::vector<float>& all) {
    const SeqTokens of_seq{seq, int(tokens.size())};
    pool->reserve(seq, of_seq.n_tokens).or_throw();
    engine.backend().run({.tokens = tokens, .seqs = {&of_seq, 1}, .logits = LogitRows::all}, *pool, *outputs);
    const View2<const float> rows = outputs->logits();
    all.insert(all.end(), rows.data, rows.data + rows.rows * rows.cols);
  };
  Answer answer;
  for (size_t first = 0; first < ids.size(); first += kStep)
    run(ids.subspan(first, std::min<size_t>(kStep, ids.size() - first)), answer.prompt);
  pool->close(seq);
  seq = pool->open().or_throw();
  for (size_t i = 0; i < ids.size(); ++i) run(ids.subspan(i, 1), answer.decoded);
  std::vector<float> last(answer.decoded.end() - engine.plan().vocab_size, answer.decoded.end());
  while (int(answer.greedy.size()) < n_greedy) {
    answer.greedy.push_back(int32_t(std::ranges::max_element(last) - last.begin()));
    last.clear();
    run({&answer.greedy.back(), 1}, last);
  }
  return answer;
}

/// The answers of n ranks, which must be the same bits.
Answer answer_of_ranks(int n, const std::string& path, std::span<const int32_t> ids, int n_greedy,
                       const std::string& kv = "f32", const std::string& isa = "") {
  std::vector<Answer> answers(static_cast<size_t>(n));
  on_ranks(n, [&](Ranks& ranks) {
    Engine engine(path, {.n_threads = 1, .isa = isa}, &ranks);
    answers[size_t(ranks.rank())] = answer_of(engine, ids, n_greedy, kv);
  });
  for (int r = 1; r < n; ++r) {
    EXPECT_EQ(answers[size_t(r)].prompt, answers[0].prompt) << "rank " << r;
    EXPECT_EQ(answers[size_t(r)].decoded, answers[0].decoded) << "rank " << r;
    EXPECT_EQ(answers[size_t(r)].greedy, answers[0].greedy) << "rank " << r;
  }
  return answers[0];
}

template <class T>
std::vector<T> tensor(std::span<const io::Tensor> tensors, std::string_view name) {
  for (const io::Tensor& t : tensors)
    if (t.name == name) {
      const auto* const first = reinterpret_cast<const T*>(t.data.data());
      return {first, first + t.data.size() / sizeof(T)};
    }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

/// The bound of parity_test.cpp is for products added in float32 in any order: the error of n products, at most
/// n u sum |w x|, does not depend on it. Ranks only choose another order, so the bound is theirs too.
constexpr double kBound = 1e-4;

class TensorParallelParity : public testing::TestWithParam<std::string> {};

TEST_P(TensorParallelParity, RanksComputeTheGoldenLogits) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const std::filesystem::path directory = *data / "parity/models" / GetParam();
  const io::MappedFile file = io::MappedFile::open(directory / "golden.safetensors").or_throw();
  const std::vector<io::Tensor> tensors = io::parse_safetensors(file.bytes(), "golden").or_throw();
  const auto ids = tensor<int32_t>(tensors, "input_ids"), greedy = tensor<int32_t>(tensors, "greedy_ids");
  const auto expected = tensor<float>(tensors, "logits");
  const int n_heads = load_model(directory.native()).or_throw().config.n_heads;
  for (const int n : {2, 4}) {
    if (n_heads % n != 0) continue;
    const Answer answer = answer_of_ranks(n, directory.native(), ids, int(greedy.size()));
    EXPECT_EQ(answer.greedy, greedy) << n;
    for (const auto* logits : {&answer.prompt, &answer.decoded}) {
      ASSERT_EQ(logits->size(), expected.size());
      double worst = 0;
      for (size_t i = 0; i < expected.size(); ++i)
        worst = std::max(worst, std::abs(double((*logits)[i]) - expected[i]));
      EXPECT_LT(worst, kBound) << n << " ranks";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TensorParallelParity,
                         testing::Values("mistral", "mistral_swa", "llama3", "granite", "phi3", "phi3_longrope",
                                         "olmo2", "gemma3", "qwen3_moe", "qwen3_moe_dense", "qwen2_moe", "gpt_oss",
                                         "gpt_oss_mxfp4", "deepseek_v3"),
                         [](const auto& of) { return of.param; });

TEST(TensorParallel, StatesOfTheDeltaRuleAreRefusedByName) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  for (const char* name : {"qwen3_5", "qwen3_5_moe", "qwen3_next"})
    on_ranks(2, [&](Ranks& ranks) {
      try {
        const Engine engine((*data / "parity/models" / name).native(), {.n_threads = 1}, &ranks);
        ADD_FAILURE() << name;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_THAT(error.what(), HasSubstr("--tp 2: the gated delta rule is not cut"));
      }
    });
}

const std::vector<int32_t> kIds{1,   403, 407, 261, 378, 411, 277, 299, 265, 302, 305, 286, 412, 426, 396, 272, 410,
                                413, 286, 302, 270, 355, 432, 262, 381, 300, 285, 347, 273, 260, 410, 288, 315, 290};

std::vector<int32_t> within(int vocab_size) {
  std::vector<int32_t> ids = kIds;
  for (int32_t& id : ids) id %= vocab_size;
  return ids;
}

/// Where activations or queries are rounded to integers, another order of a sum can end one step away: texts stay the same
/// as long as no two tokens are nearly as likely. The scalar kernels round neither.
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
