// A GGUF file without a vocabulary: token ids work, text is refused with a reason.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "cases/gguf_builder.h"
#include "cases/temp_dir.h"
#include "ridge/engine.h"

namespace ridge {
namespace {

constexpr uint32_t kVocab = 16, kRowDim = 32;

/// One llama layer whose file names `tokenizer` as its tokenizer model.
GgufBuilder one_layer(std::string_view tokenizer) {
  GgufBuilder file;
  file.text("general.architecture", "llama").text("tokenizer.ggml.model", tokenizer);
  file.u32("llama.block_count", 1).u32("llama.context_length", 64).u32("llama.embedding_length", kRowDim);
  file.u32("llama.feed_forward_length", kRowDim).u32("llama.attention.head_count", 1);
  file.f32("token_embd.weight", {kRowDim, kVocab}).f32("output_norm.weight", {kRowDim}, 1);
  for (const char* norm : {"attn_norm", "ffn_norm"}) file.f32("blk.0." + std::string(norm) + ".weight", {kRowDim}, 1);
  for (const char* matrix : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
    file.f32("blk.0." + std::string(matrix) + ".weight", {kRowDim, kRowDim}, -512);
  return file;
}

std::string written(const TempDir& directory, std::string_view tokenizer) {
  const std::string path = (directory.path() / "ids.gguf").string();
  std::ofstream(path, std::ios::binary) << one_layer(tokenizer).build();
  return path;
}

std::string usage_error(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(TokenIds, AModelWithoutAVocabularyDecodesIds) {
  const TempDir directory;
  for (const char* tokenizer : {"no_vocab", "none"}) {
    const Model model = Model::load(written(directory, tokenizer));
    EXPECT_FALSE(model.info().has_tokenizer);
    EXPECT_FALSE(model.info().add_bos);
    EXPECT_FALSE(model.is_end(2));
    EXPECT_FALSE(model.bos().has_value());
    Session session(model, {});
    session.prefill(std::vector<int32_t>{1, 5, 9});
    const std::span<const float> logits = session.decode(3);
    ASSERT_EQ(logits.size(), kVocab);
    for (const float x : logits) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(TokenIds, TextIsRefusedWithTheReasonAndWhatToDo) {
  const TempDir directory;
  const std::string path = written(directory, "no_vocab");
  const Model model = Model::load(path);
  const std::string expected = "text cannot become tokens, nor tokens text: " + path +
                               ": the model has no tokenizer (pass token ids, or use a model with one)";
  EXPECT_EQ(usage_error([&] { model.tokenize("once", true); }), expected);
  EXPECT_EQ(usage_error([&] { model.piece(3); }), expected);
  EXPECT_EQ(usage_error([&] { model.detokenize(std::vector<int32_t>{1, 2}); }), expected);
}

}  // namespace
}  // namespace ridge
