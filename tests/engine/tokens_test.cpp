// Tokens and rows of the embedding that do not match: tokens without a row, rows without a token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/paths.h"
#include "cases/temp_dir.h"
#include "engine/engine.h"
#include "io/gguf.h"

namespace ridge {
namespace {

/// The tiny model with changed metadata.
Model changed(const std::function<void(std::map<std::string, io::GgufValue, std::less<>>&)>& change) {
  const TempDir dir;
  const io::GgufFile file = io::open_gguf(RIDGE_SOURCE_DIR "/models/stories260K.gguf").or_throw();
  auto metadata = file.gguf.metadata;
  change(metadata);
  std::vector<io::GgufTensorSpec> specs;
  for (const io::Tensor& tensor : file.gguf.tensors) specs.push_back({tensor.name, tensor.format, tensor.shape});
  io::write_gguf(dir / "m", metadata, specs, [&](size_t i, std::vector<std::byte>& out) -> Status {
    out.assign(file.gguf.tensors[i].data.begin(), file.gguf.tensors[i].data.end());
    return {};
  }).or_throw();
  return Model::load((dir / "m").string());
}

template <class T>
std::vector<T>& list(std::map<std::string, io::GgufValue, std::less<>>& metadata, const char* key) {
  return std::get<std::vector<T>>(metadata.at(key));
}

TEST(Tokens, OneWithoutARowIsRefusedInPrompts) {
  const Model model = changed([](auto& metadata) {
    list<std::string>(metadata, "tokenizer.ggml.tokens").push_back("<image>");
    list<double>(metadata, "tokenizer.ggml.scores").push_back(0);
    list<int64_t>(metadata, "tokenizer.ggml.token_type").push_back(3);
  });
  EXPECT_EQ(model.info().vocab_size, 512);
  EXPECT_FALSE(model.tokenize("a <image>", true, false).empty());
  try {
    model.tokenize("a <image>", true, true);
    FAIL() << "the token has no row";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), testing::HasSubstr("'<image>' (512)"));
  }
  Session session(model, {.n_ctx = 32});
  EXPECT_THROW(session.prefill(std::vector<int32_t>{1, 512}), Error);
}

TEST(Tokens, RowsWithoutATokenAreNeverSampled) {
  const Model model = changed([](auto& metadata) {
    list<std::string>(metadata, "tokenizer.ggml.tokens").resize(500);
    list<double>(metadata, "tokenizer.ggml.scores").resize(500);
    list<int64_t>(metadata, "tokenizer.ggml.token_type").resize(500);
  });
  EXPECT_EQ(model.piece(505), "");
  EXPECT_EQ(model.detokenize(std::vector<int32_t>{505, 511}), "");
  Session session(model, {.n_ctx = 256});
  const GenerateResult result = generate(
      session, model, std::vector<int32_t>{1},
      {.max_tokens = 200, .ignore_eos = true, .sampler = {.temperature = 100, .top_k = 0, .top_p = 1, .min_p = 0}},
      [](std::string_view) { return true; });
  EXPECT_EQ(result.tokens.size(), 200u);
  for (const int32_t token : result.tokens) EXPECT_LT(token, 500);
}

}  // namespace
}  // namespace ridge
