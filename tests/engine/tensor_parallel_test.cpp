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

void expect_refusal(int n, const std::string& path, const std::string& why) {
  on_ranks(n, [&](Ranks& ranks) {
    try {
      const Engine engine(path, {.n_threads = 1}, &ranks);
      ADD_FAILURE() << path << " is shared by " << n;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  });
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
  const io::MappedFile file = io::MappedFile::open(directory / "golden.safetensors").or_throw();
  const std::vector<io::Tensor> tensors = io::parse_safetensors(file.bytes(), "golden").or_throw();
  const auto ids = tensor<int32_t>(tensors, "input_ids"), greedy = tensor<int32_t>(tensors, "greedy_ids");
  const auto expected = tensor<float>(tensors, "logits");
  for (const int n : {2, 4}) {
    if (n == 4 && !GetParam().refusal_of_4.empty()) {
      expect_refusal(n, path, GetParam().refusal_of_4);
      continue;
    }
    const Answer answer = answer_of_ranks(n, path, ids, int(greedy.size()));
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

const std::string kTwoKeyHeads = "--tp 4: the gated delta rule has 2 key heads, which 4 ranks do not share evenly";
const std::string kOneKvHead = "--tp 4: attention has 2 heads and 1 KV heads, which 4 ranks do not share evenly",
                  kTwoKvHeads = "--tp 4: attention has 2 heads and 2 KV heads, which 4 ranks do not share evenly";
INSTANTIATE_TEST_SUITE_P(
    Models, TensorParallelParity,
    testing::Values(Shared{"mistral"}, Shared{"mistral_swa"}, Shared{"llama3"}, Shared{"granite", kOneKvHead},
                    Shared{"phi3", kOneKvHead}, Shared{"phi3_longrope", kTwoKvHeads}, Shared{"olmo2"}, Shared{"gemma3"},
                    Shared{"qwen3_moe"}, Shared{"qwen3_moe_dense"}, Shared{"qwen2_moe"}, Shared{"gpt_oss"},
                    Shared{"gpt_oss_mxfp4"}, Shared{"deepseek_v3"}, Shared{"qwen3_5", kTwoKeyHeads},
                    Shared{"qwen3_5", kTwoKeyHeads, "model-f32.gguf"}, Shared{"qwen3_5_moe", kTwoKeyHeads},
                    Shared{"qwen3_5_moe", kTwoKeyHeads, "model-bf16.gguf"}, Shared{"qwen3_5_mtp", kTwoKeyHeads},
                    Shared{"qwen3_next", kTwoKeyHeads}, Shared{"qwen3_next", kTwoKeyHeads, "model-bf16.gguf"}),
    [](const auto& of) { return of.param.name + (of.param.gguf.empty() ? "" : "_gguf"); });

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

/// Shapes are made as rows, cut, then packed for the processor's own kernels: the panels of a whole one are packed at once.
TEST(TensorParallel, ShapesAreCutBeforeTheyArePacked) {
  for (const std::string shape : {"tiny-64@weights=f32", "tiny-64@weights=f32@shared=1", "tiny-experts@weights=f32",
                                  "tiny-delta@weights=f32", "tiny-latent@weights=f32", "tiny-bitnet"}) {
    const std::string path = "synth:" + shape;
    Engine alone(path, {});
    const std::vector<int32_t> ids = within(alone.info().vocab_size);
    const Answer expected = answer_of(alone, ids, 8, "f32"), answer = answer_of_ranks(2, path, ids, 8);
    ASSERT_EQ(answer.decoded.size(), expected.decoded.size());
    double worst = 0;
    for (size_t i = 0; i < expected.decoded.size(); ++i)
      worst = std::max({worst, std::abs(double(answer.decoded[i]) - expected.decoded[i]),
                        std::abs(double(answer.prompt[i]) - expected.prompt[i])});
    EXPECT_LT(worst, shape == "tiny-bitnet" ? 1e-30 : kBound) << shape;
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
