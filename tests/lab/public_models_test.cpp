// The public models of scripts/real-models, which do not ship: skipped where they are not.
#include <gtest/gtest.h>

#include <filesystem>

#include "cases/paths.h"
#include "engine/decode/text.h"
#include "lab/quality/quality.h"

namespace ridge::lab {
namespace {

struct PublicModel {
  const char* file;
  /// Perplexity of two windows of 512 tokens of models/wikitext-2-excerpt.txt in float32, by
  /// tests/golden/public-models/make.py.
  double ppl;
};

class PublicModels : public testing::TestWithParam<PublicModel> {
 protected:
  static std::filesystem::path path() {
    return std::filesystem::path(RIDGE_SOURCE_DIR "/models/public") / GetParam().file;
  }
  void SetUp() override {
    if (!std::filesystem::exists(path())) GTEST_SKIP() << path() << " is not here (scripts/real-models brings it)";
  }
};

TEST_P(PublicModels, PerplexityIsThatOfFloat32) {
  const Model model = Model::load(path().native(), {.n_threads = 2});
  const Corpus corpus = read_corpus(model, RIDGE_SOURCE_DIR "/models/wikitext-2-excerpt.txt");
  EvalOptions options;
  options.max_chunks = 2;
  options.candidates = parse_kv_list("f32").or_throw();
  const EvalResult result = evaluate(model, corpus, options, {});
  EXPECT_NEAR(result.candidates[0].scores.ppl.ppl().value / GetParam().ppl, 1, 1e-3);
}

TEST_P(PublicModels, GreedyTextIsTheSameOnOneAndTwoThreads) {
  const auto text_on = [](int n_threads) {
    const Model model = Model::load(path().native(), {.n_threads = n_threads});
    SessionOptions options;
    options.n_ctx = 64;
    options.k.format = options.v.format = "rotor-4";
    Session session(model, options);
    std::string text;
    generate(session, model, model.tokenize("The capital of France is"),
             {.max_tokens = 16, .ignore_eos = true, .sampler = {.temperature = 0}}, [&](std::string_view piece) {
               text += piece;
               return true;
             });
    return text;
  };
  const std::string one = text_on(1);
  EXPECT_GT(one.size(), 16u);
  EXPECT_EQ(one, text_on(2));
}

INSTANTIATE_TEST_SUITE_P(, PublicModels,
                         testing::Values(PublicModel{"SmolLM2-135M-Instruct.Q4_1.gguf", 21.372224},
                                         PublicModel{"gemma-3-270m-q4_k_m.gguf", 15.564752}),
                         [](const auto& of) { return std::string(of.index == 0 ? "SmolLM2" : "Gemma3"); });

}  // namespace
}  // namespace ridge::lab
