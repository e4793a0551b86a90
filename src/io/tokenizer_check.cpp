// Checks of a TokenizerSpec before any table is built from it.
#include <algorithm>
#include <cmath>

#include "io/text.h"
#include "io/tokenizer_parts.h"

namespace ridge::io {

namespace {

Status check_sizes(const TokenizerSpec& spec) {
  const size_t n = spec.pieces.size();
  if (n == 0) return bad_file("tokenizer: the vocabulary has no tokens");
  if (n > kMaxVocab) return bad_file("tokenizer: {} tokens, at most {} are supported", n, kMaxVocab);
  if (spec.types.size() != n) return bad_file("tokenizer: {} token types for {} tokens", spec.types.size(), n);
  const size_t scores = spec.model == TokenizerModel::bpe ? 0 : n;
  if (spec.scores.size() != scores)
    return bad_file("tokenizer: {} scores for {} tokens, expected {}", spec.scores.size(), n, scores);
  return {};
}

Status check_pieces(const TokenizerSpec& spec) {
  for (size_t id = 0; id < spec.pieces.size(); ++id) {
    const std::string& piece = spec.pieces[id];
    if (piece.size() > kMaxPieceBytes)
      return bad_file("tokenizer: token {} has {} bytes, at most {} are supported", id, piece.size(), kMaxPieceBytes);
    if (spec.types[id] > TokenType::byte)
      return bad_file("tokenizer: token {} has type {}, expected 0 to 6", id, int(spec.types[id]));
    if (!spec.scores.empty() && std::isnan(spec.scores[id]))
      return bad_file("tokenizer: the score of token {} ({}) is not a number", id, in_quotes(piece));
    if (spec.types[id] != TokenType::byte) continue;
    if (spec.model == TokenizerModel::bpe)
      return bad_file("tokenizer: token {} ({}) is of type byte, which byte-level BPE does not have", id,
                      in_quotes(piece));
    if (!byte_of_piece(piece))
      return bad_file("tokenizer: byte token {} is spelled {}, expected <0x00> to <0xFF>", id, in_quotes(piece));
  }
  return {};
}

Status check_special_ids(const TokenizerSpec& spec) {
  const std::pair<const char*, const std::optional<int32_t>&> named[] = {
      {"BOS", spec.bos}, {"EOS", spec.eos}, {"unknown", spec.unk}, {"padding", spec.pad}};
  for (const auto& [name, id] : named)
    if (id && (*id < 0 || size_t(*id) >= spec.pieces.size()))
      return bad_file("tokenizer: the {} token is {}, expected an id below {}", name, *id, spec.pieces.size());
  for (const int32_t id : spec.ends)
    if (id < 0 || size_t(id) >= kMaxVocab)
      return bad_file("tokenizer: a token that ends a turn is {}, expected an id below {}", id, kMaxVocab);
  if (!std::ranges::is_sorted(spec.ends)) return bad_file("tokenizer: the tokens that end a turn are not in order");
  if (spec.add_bos && !spec.bos)
    return bad_file("tokenizer: BOS is to be added, but the vocabulary names no BOS token");
  if (spec.add_eos && !spec.eos)
    return bad_file("tokenizer: EOS is to be added, but the vocabulary names no EOS token");
  return {};
}

}  // namespace

Status check_tokenizer_spec(const TokenizerSpec& spec) {
  RIDGE_TRY_STATUS(check_sizes(spec));
  RIDGE_TRY_STATUS(check_pieces(spec));
  RIDGE_TRY_STATUS(check_special_ids(spec));
  for (const auto& [id, rule] : spec.match_rules)
    if (id < 0 || size_t(id) >= spec.pieces.size())
      return bad_file("tokenizer: a match rule is for token {}, expected an id below {}", id, spec.pieces.size());
  const bool spaces = spec.model != TokenizerModel::bpe;
  if (spaces != (spec.pre >= PreTokenizer::lines))
    return bad_file("tokenizer: {}", spaces ? "spm takes no pre-tokenizer" : "byte-level BPE needs a pre-tokenizer");
  return {};
}

}  // namespace ridge::io
