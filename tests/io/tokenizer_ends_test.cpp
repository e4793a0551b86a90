// What ends a turn: every source, and what is not one.
#include <gtest/gtest.h>

#include "cases/tiny_tokenizer.h"

namespace ridge::io {
namespace {

using Ids = std::vector<int32_t>;

/// The ends that are not those of tiny_bpe().
Ids new_ends(const TokenizerSpec& spec) {
  Ids ends = end_tokens(spec);
  for (const int32_t known : end_tokens(tiny_bpe())) std::erase(ends, known);
  return ends;
}

TEST(TokenizerEnds, KnownPiecesCountWhateverTheirType) {
  for (const char* piece : {"<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|return|>",
                            "<|call|>", "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>", "<|end_of_text|>"})
    for (const TokenType type : {TokenType::control, TokenType::user_defined, TokenType::normal}) {
      TokenizerSpec spec = tiny_bpe();
      const int32_t id = add_token(spec, piece, type);
      EXPECT_EQ(new_ends(spec), Ids{id}) << piece;
      const Tokenizer tokenizer = Tokenizer::make(spec).or_throw();
      EXPECT_TRUE(tokenizer.is_end(id));
      EXPECT_FALSE(tokenizer.is_end(0));
      EXPECT_FALSE(tokenizer.is_end(-1));
      EXPECT_FALSE(tokenizer.is_end(tokenizer.vocab_size()));
    }
}

TEST(TokenizerEnds, WhatATextMaySpellCountsAsAControlTokenOnly) {
  TokenizerSpec spec = tiny_bpe();
  const int32_t eos = add_token(spec, "<eos>", TokenType::control);
  add_token(spec, "[EOS]", TokenType::user_defined);
  add_token(spec, "[EOT]", TokenType::normal);
  EXPECT_EQ(new_ends(spec), Ids{eos});
  spec = tiny_bpe();
  add_token(spec, "<|user|>", TokenType::control);
  EXPECT_EQ(new_ends(spec), Ids{});
  const int32_t observation = add_token(spec, "<|observation|>", TokenType::control);  // GLM's
  EXPECT_EQ(new_ends(spec), (Ids{observation - 1, observation}));
}

TEST(TokenizerEnds, InHarmonyEndPartsMessages) {
  TokenizerSpec spec = tiny_bpe();
  add_token(spec, "<|message|>", TokenType::control);
  const int32_t end = add_token(spec, "<|end|>", TokenType::control);
  EXPECT_EQ(new_ends(spec), Ids{end});
  const int32_t returns = add_token(spec, "<|return|>", TokenType::control);
  const int32_t call = add_token(spec, "<|call|>", TokenType::control);
  EXPECT_EQ(new_ends(spec), (Ids{returns, call}));
  spec.ends = {end};  // a file that says otherwise
  EXPECT_EQ(new_ends(spec), (Ids{returns, call}));
  spec.eos = end;
  EXPECT_TRUE(Tokenizer::make(spec).or_throw().is_harmony());
  EXPECT_FALSE(Tokenizer::make(spec).or_throw().is_end(end));
}

TEST(TokenizerEnds, ConfigsNameANumberOrAList) {
  TokenizerSpec spec = tiny_bpe();
  spec.eos.reset();
  EXPECT_TRUE(add_end_ids(spec, "", "config.json"));
  EXPECT_TRUE(add_end_ids(spec, R"({"eos_token_id": null})", "config.json"));
  EXPECT_FALSE(spec.eos);
  EXPECT_TRUE(add_end_ids(spec, R"({"eos_token_id": [9000, 7, 3, 7, -1]})", "generation_config.json"));
  EXPECT_EQ(spec.eos, 7);  // the first one with a piece
  EXPECT_EQ(spec.ends, (Ids{3, 9000}));
  EXPECT_TRUE(add_end_ids(spec, R"({"eos_token_id": 7, "text_config": {"eos_token_id": 4}})", "config.json"));
  EXPECT_EQ(spec.ends, (Ids{3, 4, 9000}));
  const Tokenizer tokenizer = Tokenizer::make(spec).or_throw();
  for (const int32_t id : {3, 4, 7, 9000}) EXPECT_TRUE(tokenizer.is_end(id));
  for (const char* wrong :
       {R"({"eos_token_id": "a"})", R"({"eos_token_id": [1.5]})", R"({"eos_token_id": 99999999999})",
        R"({"eos_token_id": true})", R"({"eos_token_id": {"a": 1}})"}) {
    const Status status = add_end_ids(spec, wrong, "config.json");
    ASSERT_FALSE(status) << wrong;
    EXPECT_NE(status.error().message.find("config.json: eos_token_id is"), std::string::npos);
  }
}

TEST(TokenizerEnds, GgufNamesNumbersOrLists) {
  Gguf gguf;
  gguf.where = "test.gguf";
  gguf.metadata = tokenizer_metadata(tiny_bpe());
  const auto read = [&] { return tokenizer_spec_from_gguf(gguf, "test.gguf"); };
  gguf.metadata["tokenizer.ggml.eot_token_id"] = uint64_t(5);
  gguf.metadata["tokenizer.ggml.eom_token_id"] = std::vector<int64_t>{6, 9000};
  EXPECT_EQ(read().or_throw().ends, (Ids{5, 6, 9000}));
  gguf.metadata["tokenizer.ggml.eos_token_id"] = std::vector<uint64_t>{8, 3};
  EXPECT_EQ(read().or_throw().eos, 8);
  EXPECT_EQ(read().or_throw().ends, (Ids{3, 5, 6, 9000}));
  gguf.metadata["tokenizer.ggml.eot_token_id"] = std::string("five");
  EXPECT_FALSE(read());
  gguf.metadata["tokenizer.ggml.eot_token_id"] = uint64_t(1) << 40;
  EXPECT_FALSE(read());
}

TEST(TokenizerEnds, OneMoreEndCanBeLearned) {
  Tokenizer tokenizer = Tokenizer::make(tiny_bpe()).or_throw();
  EXPECT_FALSE(tokenizer.is_end(4));
  tokenizer.add_end(4);
  tokenizer.add_end(4);
  EXPECT_TRUE(tokenizer.is_end(4));
}

TEST(TokenizerEnds, SpecialTokensAreFoundByTheirText) {
  const TokenizerSpec spec = tiny_bpe();
  const Tokenizer tokenizer = Tokenizer::make(spec).or_throw();
  EXPECT_EQ(tokenizer.find_special("</s>"), spec.eos);
  EXPECT_EQ(spec.pieces[size_t(tokenizer.find_special("<tool>").value())], "<tool>");
  for (const char* text : {"a", "</s", "</s>x", "x</s>", ""}) EXPECT_FALSE(tokenizer.find_special(text)) << text;
}

}  // namespace
}  // namespace ridge::io
