// The MTP head of Qwen3.5 against logits and drafts that transformers computed (see the README of the reference data's
// models): the head in the Hugging Face directory, in its GGUF twin and in the file that `ridge quantize` writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/reference_data.h"
#include "cases/safetensors_data.h"
#include "cases/temp_dir.h"
#include "engine/decode/text.h"
#include "engine/engine.h"
#include "engine/kv_options.h"
#include "model/convert.h"
#include "ridge/engine.h"

namespace ridge {
namespace {

class MtpHeadOfQwen : public testing::Test {
 protected:
  void SetUp() override {
    const auto data = reference_data();
    if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
    directory_ = *data / "parity/models/qwen3_5_mtp";
    tensors_ = read_safetensors(directory_ / "golden.safetensors");
  }
  template <class T>
  std::vector<T> tensor(const std::string& name) const {
    return values_of<T>(tensors_.at(name));
  }
  /// Drafts behind every prefix of the golden text, and the golden's drafts of several tokens behind all of it.
  void expect_golden(const Model& model) const {
    const SessionOptions options{.n_ctx = 128, .k = {.format = "f32"}, .v = {.format = "f32"}};
    Engine& engine = model.engine();
    const auto layers = layer_configs(options, engine.plan());
    const auto pool = engine.open_pool(layers, 1, 1);
    const auto outputs = engine.backend().make_outputs();
    const auto head = mtp_proposers(model, "", options)();
    std::vector<int32_t> text = tensor<int32_t>("input_ids");
    const auto logits = tensor<float>("mtp_logits");
    const auto drafts = tensor<int32_t>("mtp_draft_ids");
    const size_t n = text.size(), n_vocab = size_t(model.info().vocab_size);
    ASSERT_EQ(logits.size(), (n - 1) * n_vocab);

    const SeqId seq = pool->open().or_throw();
    for (size_t t = 0; t < n; ++t) {
      const SeqTokens of{seq, 1};
      pool->reserve(seq, 1).or_throw();
      engine.backend().run({.tokens = {&text[t], 1}, .seqs = {&of, 1}, .hidden = true}, *pool, *outputs);
      head->observe({&text[t], 1}, int(t), outputs->hidden());
      if (t + 1 == n) break;
      const std::span row = std::span(logits).subspan(t * n_vocab, n_vocab);
      const auto likeliest = int32_t(std::ranges::max_element(row) - row.begin());
      EXPECT_THAT(head->propose(std::span(text).first(t + 2), 1), testing::ElementsAre(likeliest)) << "position " << t;
    }
    text.push_back(tensor<int32_t>("greedy_ids")[0]);
    EXPECT_EQ(head->propose(text, int(drafts.size())), drafts);
  }

  std::filesystem::path directory_;

 private:
  std::map<std::string, std::vector<std::byte>> tensors_;
};

TEST_F(MtpHeadOfQwen, DraftsAreTheGoldens) { expect_golden(Model::load(directory_.native())); }

TEST_F(MtpHeadOfQwen, OfTheGgufTwinToo) { expect_golden(Model::load((directory_ / "model-bf16.gguf").native())); }

TEST_F(MtpHeadOfQwen, QuantizeKeepsIt) {
  const TempDir dir;
  const auto f32 = *find_weight_format("f32");
  ASSERT_TRUE(convert_to_gguf(directory_.native(), dir / "a.gguf", *f32, nullptr));
  expect_golden(Model::load((dir / "a.gguf").native()));
  ASSERT_TRUE(convert_to_gguf((dir / "a.gguf").native(), dir / "b.gguf", *f32, nullptr));
  expect_golden(Model::load((dir / "b.gguf").native()));
}

/// What the head of a model proposes behind prefixes of a text.
std::vector<std::vector<int32_t>> proposals_of(const Model& model, const std::string& head,
                                               std::span<const int32_t> text) {
  const SessionOptions options{.n_ctx = 128, .k = {.format = "f32"}, .v = {.format = "f32"}};
  auto mtp = mtp_proposers(model, head, options)();
  Proposer& proposer = *mtp;
  Speculation speculation(std::move(mtp), 1);
  Session session(model, options);
  session.speculate(&speculation);
  std::vector<std::vector<int32_t>> proposals;
  for (size_t n = 10; n < text.size(); n += 4) {
    session.prefill(text.subspan(size_t(session.n_past()), n - size_t(session.n_past())));
    proposals.push_back(proposer.propose(text.first(n + 1), 3));
  }
  return proposals;
}

/// The head of plain layers: in a file beside the model, and as the last block of the file that `ridge quantize`
/// writes, whose heads turn neighbouring pairs.
TEST(MtpHeadOfAPlainModel, QuantizeWritesItIntoTheFile) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const std::filesystem::path directory = *data / "models/ridge-ref";
  const TempDir dir;
  const auto format = *find_weight_format("bf16");  // the directory's
  ASSERT_TRUE(convert_to_gguf(directory.native(), dir / "a.gguf", *format, nullptr));
  ASSERT_TRUE(convert_to_gguf((dir / "a.gguf").native(), dir / "b.gguf", *format, nullptr));
  const Model of_directory = Model::load(directory.native());
  const std::vector<int32_t> text = of_directory.tokenize(
      "The river rises in the mountains and flows to the north, where it meets the sea near the old city and its "
      "port.");
  ASSERT_GT(text.size(), 20u);
  const auto expected = proposals_of(of_directory, "", text);
  for (const char* file : {"a.gguf", "b.gguf"}) {
    const Model model = Model::load((dir / file).native());
    EXPECT_EQ(model.info().n_layers, of_directory.info().n_layers);
    EXPECT_EQ(proposals_of(model, "", text), expected) << file;
    EXPECT_EQ(proposals_of(model, (directory / "mtp.safetensors").native(), text), expected) << file;
  }
}

}  // namespace
}  // namespace ridge
