// The working parts of a Tokenizer, each with its file: special-token matcher (tokenizer_special.cpp), merging by rank
// (tokenizer_bpe.cpp), merging by score (tokenizer_spm.cpp), the best path (tokenizer_unigram.cpp), NFC (nfc.cpp), and
// the validation of a spec.
#pragma once

#include <array>
#include <unordered_map>

#include "io/tokenizer.h"

namespace ridge::io {

inline constexpr int32_t kNoToken = -1;
inline constexpr size_t kMaxVocab = size_t(1) << 24;
/// Longest public pieces are a few hundred bytes (runs of spaces); the cap bounds every lookup.
inline constexpr size_t kMaxPieceBytes = 4096;
/// Places in a text are 32-bit while it merges, three times as many bytes after U+2581 for spaces.
inline constexpr size_t kMaxTextBytes = size_t(1) << 30;
inline constexpr std::string_view kSpmSpace = "\xE2\x96\x81";  // U+2581

/// Everything Tokenizer::make refuses that needs no lookup table.
Status check_tokenizer_spec(const TokenizerSpec& spec);

/// Where a token that was found at [begin, end) of `text` reaches after its rule, not below `floor`; nothing when the
/// rule refuses it.
std::optional<std::pair<size_t, size_t>> apply_rule(const MatchRule& rule, std::string_view text, size_t begin,
                                                    size_t end, size_t floor);

/// The byte of a `<0xHH>` piece, or nothing.
std::optional<uint8_t> byte_of_piece(std::string_view piece);

/// The bytes that a byte-level piece stands for; a piece with characters outside the alphabet stands for itself.
std::string bytes_of_bpe_piece(std::string_view piece);
/// The byte-level piece of one byte.
std::string bpe_piece_of_byte(uint8_t byte);

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

/// Unicode NFC. Text that is not UTF-8, or has more than 256 combining marks in a row (reordering them is quadratic),
/// comes back unchanged.
std::string to_nfc(std::string_view text);

/// Finds the longest token text at a place; a sorted list narrowed byte by byte.
class SpecialMatcher {
 public:
  void add(std::string text, int32_t id);
  void finish();  ///< after the last add()

  struct Match {
    size_t begin = 0, length = 0;
    int32_t id = kNoToken;
  };
  /// The leftmost match at or after `begin`, the longest of those; id kNoToken when there is none.
  Match find(std::string_view text, size_t begin) const;

 private:
  struct Entry {
    std::string text;
    int32_t id;
  };
  std::vector<Entry> entries_;
  std::array<bool, 256> first_{};
};

/// Merge rules over ids, applied best rank first, then leftmost.
class RankMerger {
 public:
  /// `left right` becomes `merged`; the first rule of a pair counts. Rules come best first.
  void add(int32_t left, int32_t right, int32_t merged);
  /// Merges `ids` in place until no rule applies.
  void merge(std::vector<int32_t>& ids) const;

 private:
  struct Rule {
    uint32_t rank;
    int32_t merged;
  };
  const Rule* find(int32_t left, int32_t right) const;
  std::unordered_map<uint64_t, Rule> rules_;
};

using PieceIds = std::unordered_map<std::string_view, int32_t>;

/// A part of a text with its id, or kNoToken.
struct Stretch {
  std::string_view text;
  int32_t id;
};

/// SentencePiece BPE: code points merge into the piece with the best score, then leftmost, until none is left.
class ScoreMerger {
 public:
  ScoreMerger(const PieceIds& ids, const std::vector<float>& scores, size_t max_piece_bytes)
      : ids_(ids), scores_(scores), max_piece_bytes_(max_piece_bytes) {}
  /// The stretches `text` ends in, in order.
  std::vector<Stretch> merge(std::string_view text) const;

 private:
  const PieceIds& ids_;
  const std::vector<float>& scores_;
  size_t max_piece_bytes_;
};

/// Unigram. Cost: the length of the text times that of the longest piece.
class BestPath {
 public:
  BestPath(const PieceIds& ids, const std::vector<float>& scores, size_t max_piece_bytes);
  /// The stretches with the largest sum of scores, in order; neighbours without a piece are one stretch.
  std::vector<Stretch> cut(std::string_view text) const;

 private:
  const PieceIds& ids_;
  const std::vector<float>& scores_;
  size_t max_piece_bytes_;
  double unknown_score_;
};

}  // namespace ridge::io
