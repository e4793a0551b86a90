// Tokenizers: byte-level BPE (pre-tokenizers gpt-2, llama-bpe, qwen2) and SentencePiece-style (llama-spm).
//
// A tokenizer is built from a TokenizerSpec, which both containers fill: GGUF metadata (tokenizer.ggml.*) and the
// Hugging Face tokenizer.json / tokenizer_config.json. Output must equal the vectors in tests exactly.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/gguf.h"

namespace ridge::io {

enum class TokenizerModel : uint8_t { bpe, spm };
enum class PreTokenizer : uint8_t { gpt2, llama_bpe, qwen2, none };
/// GGUF token types (tokenizer.ggml.token_type).
enum class TokenType : uint8_t { undefined = 0, normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct TokenizerSpec {
  TokenizerModel model = TokenizerModel::bpe;
  PreTokenizer pre = PreTokenizer::gpt2;
  std::vector<std::string> pieces;  ///< id -> piece as stored (byte-level alphabet for bpe, U+2581 for spm)
  std::vector<TokenType> types;     ///< one per piece
  std::vector<float> scores;        ///< spm only, one per piece
  std::vector<std::string> merges;  ///< bpe only, "left right", best first
  bool ignore_merges = false;       ///< a pre-token that is a piece becomes that token before merging (llama3)
  std::optional<int32_t> bos, eos, eot, unk, pad;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = false;  ///< spm: a space goes in front of the text
};

/// From GGUF metadata. Unknown tokenizer models or pre-tokenizers are a failure that lists the known ones.
Result<TokenizerSpec> tokenizer_spec_from_gguf(const Gguf& gguf, std::string_view where);
/// From tokenizer.json and (optional, may be empty) tokenizer_config.json texts.
Result<TokenizerSpec> tokenizer_spec_from_hf(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                                             std::string_view where);
/// The GGUF metadata keys of a spec, for `ridge quantize` (inverse of tokenizer_spec_from_gguf).
std::map<std::string, GgufValue, std::less<>> tokenizer_metadata(const TokenizerSpec& spec);

class Tokenizer {
 public:
  /// Validates the spec (zero tokens, duplicate or empty pieces, ids out of range, merges to unknown pieces, NaN
  /// scores, bad byte pieces) and builds the lookup tables.
  static Result<Tokenizer> make(TokenizerSpec spec);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  const TokenizerSpec& spec() const;
  int32_t vocab_size() const;

  /// Text to ids. `add_special` puts BOS/EOS as the spec says. Control-token text inside `text` is ordinary text
  /// unless `parse_special`; user-defined tokens always match.
  std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special) const;
  /// Raw bytes of one token (may be part of a UTF-8 sequence). Control tokens give "" unless `special`.
  std::string piece(int32_t id, bool special = false) const;
  /// Bytes of a whole sequence; spm drops the space that add_space_prefix put in front.
  std::string decode(std::span<const int32_t> ids, bool special = false) const;
  bool is_control(int32_t id) const;
  /// EOS, EOT and other end-of-generation ids.
  bool is_end(int32_t id) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Streams detokenised text without ever splitting a UTF-8 sequence: bytes are held back until the sequence is whole.
/// Bytes that can never become valid are passed on as U+FFFD.
class Utf8Stream {
 public:
  /// Adds bytes; returns the longest prefix of what is pending that ends on a sequence boundary.
  std::string push(std::string_view bytes);
  /// What is left at the end of the stream (an incomplete sequence becomes U+FFFD).
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace ridge::io
