// Two vocabularies small enough to reason about, with every kind of token.
#pragma once

#include "io/tokenizer.h"
#include "io/tokenizer_parts.h"

namespace ridge {

inline int32_t add_token(io::TokenizerSpec& spec, std::string piece, io::TokenType type, float score = 0) {
  spec.pieces.push_back(std::move(piece));
  spec.types.push_back(type);
  if (spec.model == io::TokenizerModel::spm) spec.scores.push_back(score);
  return int32_t(spec.pieces.size()) - 1;
}

/// Byte-level BPE: ids 0 to 255 are the bytes, then the merges' results in order, then special tokens.
inline io::TokenizerSpec tiny_bpe() {
  using io::TokenType;
  io::TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) add_token(spec, io::bpe_piece_of_byte(uint8_t(byte)), TokenType::normal);
  spec.merges = {"l l", "h e", "he ll", "hell o", "\xC4\xA0 w", "a a", "aa a", "\xC3\x83 \xC2\xA9"};
  for (const std::string& merge : spec.merges) {
    std::string piece = merge;
    piece.erase(piece.find(' '), 1);
    add_token(spec, piece, TokenType::normal);
  }
  spec.bos = add_token(spec, "<s>", TokenType::control);
  spec.eos = add_token(spec, "</s>", TokenType::control);
  add_token(spec, "<|im_end|>", TokenType::control);
  add_token(spec, "<tool>", TokenType::user_defined);
  add_token(spec, "<tool>s", TokenType::user_defined);
  add_token(spec, "[PAD]", TokenType::unused);
  return spec;
}

/// SentencePiece BPE with byte fallback: <unk> <s> </s>, 256 bytes, then pieces with falling scores.
inline io::TokenizerSpec tiny_spm() {
  using io::TokenType;
  io::TokenizerSpec spec;
  spec.model = io::TokenizerModel::spm;
  spec.pre = io::PreTokenizer::none;
  spec.add_space_prefix = spec.add_bos = true;
  spec.unk = add_token(spec, "<unk>", TokenType::unknown);
  spec.bos = add_token(spec, "<s>", TokenType::control);
  spec.eos = add_token(spec, "</s>", TokenType::control);
  for (int byte = 0; byte < 256; ++byte) add_token(spec, fmt::format("<0x{:02X}>", byte), TokenType::byte);
  const std::string space(io::kSpmSpace);
  float score = 0;
  for (const char* piece : {"ll", "he", "hell", "hello", "aa", "aaa"})
    add_token(spec, piece, TokenType::normal, --score);
  for (const std::string& piece : {space + "w", space + "h", space + space, space + "hello"})
    add_token(spec, piece, TokenType::normal, --score);
  for (const char letter : std::string("abdehlorw<>/sunk"))
    add_token(spec, std::string(1, letter), TokenType::normal, --score);
  for (const std::string& piece : {space, std::string("\xC3\xA9")}) add_token(spec, piece, TokenType::normal, --score);
  add_token(spec, "<tool>", TokenType::user_defined, --score);
  return spec;
}

}  // namespace ridge
