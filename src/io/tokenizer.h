// Tokenizers: byte-level BPE (pre-tokenizers by name: io/pretokenizer.h), SentencePiece-style BPE (llama-spm), Unigram.
//
// A tokenizer is built from a TokenizerSpec, which both containers fill: GGUF metadata (tokenizer.ggml.*) and the
// Hugging Face tokenizer.json / tokenizer_config.json. Output must equal the vectors in tests exactly.
//
// Oddities of real vocabularies that are accepted: duplicate pieces (text becomes the lowest id, every id decodes),
// empty pieces (never produced, decode to nothing), padding pieces of any type, a missing token_type array (see
// tokenizer_spec_from_gguf). Refused vocabularies are listed at Tokenizer::make.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/gguf.h"

namespace ridge::io {

/// unigram spells spaces as spm does and takes the pieces with the largest sum of scores.
enum class TokenizerModel : uint8_t { bpe, spm, unigram };
/// How text is cut before merging. spm and unigram take it as one unit (none), line by line (lines: gemma4) or word by
/// word, each with the U+2581 before it (words: Metaspace).
enum class PreTokenizer : uint8_t {
  gpt2,
  llama_bpe,
  qwen2,
  qwen35,
  tekken,
  gpt4o,
  smollm,
  deepseek_v3,
  deepseek_llm,
  ggml_default,
  lines,
  words,
  none
};
/// GGUF token types (tokenizer.ggml.token_type).
enum class TokenType : uint8_t {
  undefined = 0,     ///< treated as normal
  normal = 1,        ///< produced from ordinary text
  unknown = 2,       ///< stands for what the vocabulary cannot spell; never matched in text
  control = 3,       ///< structure (BOS, turn marks): produced only on request, invisible when decoded
  user_defined = 4,  ///< matched in text before anything else, longest first
  unused = 5,        ///< padding of the embedding; never produced
  byte = 6,          ///< spm: one byte, spelled <0xHH>
};

/// How a control or user-defined token is found in text, where that is not by its letters alone.
struct MatchRule {
  bool strip_left = false, strip_right = false;  ///< white space on that side belongs to the token
  bool single_word = false;                      ///< not beside a letter, digit or underscore
  bool normalized = false;                       ///< looked for after NFC; text without it is the same

  bool operator==(const MatchRule&) const = default;
};

struct TokenizerSpec {
  TokenizerModel model = TokenizerModel::bpe;
  PreTokenizer pre = PreTokenizer::gpt2;
  std::vector<std::string> pieces;  ///< id -> piece as stored (byte-level alphabet for bpe, U+2581 for spm)
  std::vector<TokenType> types;     ///< one per piece
  std::vector<float> scores;        ///< spm: one per piece, the highest merges first; unigram: natural logarithms of
                                    ///< probabilities; empty for bpe
  std::vector<std::string> merges;  ///< "left right", best first; with spm they replace the scores as merge order
  bool ignore_merges = false;       ///< bpe: a pre-token that is a piece becomes that token before merging (llama3)
  bool nfc = false;                 ///< text is brought to Unicode NFC first (Hugging Face files of Qwen2)
  std::optional<int32_t> bos, eos, unk, pad;
  std::vector<int32_t>
      ends;  ///< besides eos, what ends a turn: ascending, below 2^24; the model may have a row for an id
             ///< that the tokenizer has no piece for
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = false;             ///< spm, unigram: a space goes in front of each run of ordinary text
  bool prefix_unless_space = false;          ///< but not where the run begins with one (Metaspace)
  bool prefix_first_only = false;            ///< and only where the run begins the text
  std::map<int32_t, MatchRule> match_rules;  ///< by id

  bool operator==(const TokenizerSpec&) const = default;
};

/// Whether a GGUF file says that it has token ids and no text: tokenizer.ggml.model is "no_vocab" or "none".
bool has_no_vocab(const Gguf& gguf);

/// From GGUF metadata. Unknown tokenizer models or pre-tokenizers are a failure that lists the known ones. Special ids
/// of -1 mean "none" (some converters write them). Without token_type every piece is normal, except that ids named as
/// BOS, EOS, ends or padding are control, the unknown id is unknown, and <0xHH> pieces of spm are bytes.
Result<TokenizerSpec> tokenizer_spec_from_gguf(const Gguf& gguf, std::string_view where);
/// From tokenizer.json and (optional, may be empty) tokenizer_config.json and special_tokens_map.json texts: byte-level
/// BPE with one of the known splits, or the SentencePiece form (byte fallback, spaces as U+2581). Whatever in the file
/// would change token ids and is not understood is a failure. Ids that the file skips become empty unused pieces.
Result<TokenizerSpec> tokenizer_spec_from_hf(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                                             std::string_view where, std::string_view special_tokens_map_json = {});
/// The tokens that end a turn: those that the files name, and known pieces of published models. In a vocabulary of
/// harmony `<|end|>` parts messages and is none of them, whatever the files say. Ascending.
std::vector<int32_t> end_tokens(const TokenizerSpec& spec);
/// Whether the vocabulary has the marks of harmony, gpt-oss's form of answers (text/harmony.h).
bool is_harmony(const TokenizerSpec& spec);
/// Adds an id to `ends`, once.
void add_end(TokenizerSpec& spec, int32_t id);
/// Adds the ids of `eos_token_id`, a number or a list, of a config.json or generation_config.json (may be empty). The
/// first one with a piece becomes `eos` where there is none.
Status add_end_ids(TokenizerSpec& spec, std::string_view config_json, std::string_view where);

/// The GGUF metadata keys of a spec, for `ridge quantize` (inverse of tokenizer_spec_from_gguf). What GGUF has no
/// key for (ignore_merges against the habit of the pre-tokenizer, nfc, Metaspace, match rules) goes into
/// ridge.tokenizer.*.
std::map<std::string, GgufValue, std::less<>> tokenizer_metadata(const TokenizerSpec& spec);

class Tokenizer {
 public:
  /// Builds the lookup tables. Refuses: no pieces, more than 2^24, a piece over 4096 bytes, types or scores of another
  /// length, NaN scores, byte pieces that are not <0xHH>, merges of or into unknown pieces, special ids out of range,
  /// add_bos without BOS (or EOS), and a vocabulary that cannot spell every byte and has no unknown token either.
  static Result<Tokenizer> make(TokenizerSpec spec);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  const TokenizerSpec& spec() const;
  int32_t vocab_size() const;

  /// Text to ids. `add_special` puts BOS/EOS as the spec says. Control-token text inside `text` is ordinary text
  /// unless `parse_special`; user-defined tokens always match. Any bytes are accepted: invalid UTF-8 becomes byte
  /// tokens. Cost: n log n in the text, also when it is a single pre-token. Safe to call from several threads. Throws
  /// Error(usage) above 1 GiB.
  std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special) const;
  /// Raw bytes of one token (may be part of a UTF-8 sequence). Control and unknown tokens give "" unless `special`.
  /// An id that no token has (embeddings are padded) gives "" too.
  std::string piece(int32_t id, bool special = false) const;
  /// Bytes of a whole sequence; spm drops the spaces that add_space_prefix put in front of each run of text. Returns
  /// what encode() was given unless the vocabulary lost it: no byte or U+2581 pieces, NFC, or a literal U+2581 with
  /// spm.
  std::string decode(std::span<const int32_t> ids, bool special = false) const;
  bool is_control(int32_t id) const;
  /// Whether the token ends a turn: end_tokens(), and what add_end() brought.
  bool is_end(int32_t id) const;
  /// One more token that ends a turn. Not while other threads use the tokenizer.
  void add_end(int32_t id);
  bool is_harmony() const;  ///< io::is_harmony()
  /// The control or user-defined token that `text` becomes as a whole with parse_special; nothing if there is none.
  std::optional<int32_t> find_special(std::string_view text) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Streams detokenised text without ever splitting a UTF-8 sequence: bytes are held back until the sequence is whole.
/// Bytes that can never become valid are passed on as U+FFFD, one for each longest prefix of a valid sequence.
class Utf8Stream {
 public:
  /// Adds bytes; returns the longest prefix of the pending bytes that ends on a sequence boundary.
  std::string push(std::string_view bytes);
  /// Returns the bytes left at the end of the stream (an incomplete sequence becomes U+FFFD).
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace ridge::io
