// Which tokens may come next in a text of a grammar.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "grammar/matcher.h"
#include "grammar/vocabulary.h"

namespace ridge::grammar {

inline constexpr size_t kMaskCacheBytes = size_t(32) << 20;
inline constexpr std::chrono::milliseconds kPrepareTime{200};

/// Result of a walk over the tokens for the upper frames of a stack.
struct Piece {
  std::shared_ptr<const std::vector<uint64_t>> mask;  ///< of tokens that the frames read whole; shared, null: of none
  std::vector<int32_t> tokens;                        ///< what they read whole besides
  std::vector<uint32_t> exits;  ///< trie nodes with something below where the frames are read to their end
  uint32_t reach = 0;           ///< frames that it takes above those that go on
  size_t size() const { return sizeof(*this) + (tokens.size() + exits.size()) * 4; }
};

/// A grammar with a vocabulary and the masks that its texts needed so far. Free to share between threads.
///
/// A state's mask is put together from pieces. A piece belongs to the upper frames of stacks, down to the end of a
/// rule, that have the same frames below: it has the tokens that the upper frames read whole, and the places in the
/// trie at which they are read to their end, from where the frames below go on. Inside a string the piece is the same
/// wherever the string stands. Pieces of two rules are made of pieces of one; what they leave to the frames below is
/// little.
class CompiledGrammar {
 public:
  /// Refuses a vocabulary without tokens of single bytes that the grammar needs: every byte of its literals and one
  /// byte of each of its sets. With them a text can always go on or end.
  static Result<std::shared_ptr<const CompiledGrammar>> make(Grammar grammar,
                                                             std::shared_ptr<const Vocabulary> vocabulary,
                                                             size_t max_cache_bytes = kMaskCacheBytes);

  const Grammar& grammar() const { return grammar_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  size_t cache_bytes() const;
  /// Bytes of the grammar, its masks and its automaton, which texts add to.
  size_t bytes() const;
  /// Finds masks before texts need them, those of the shortest texts first, for `limit` and the rest of one mask at
  /// most. To be called where no token waits. Masks do not depend on it.
  void prepare(std::chrono::milliseconds limit = kPrepareTime) const;

 private:
  friend class TokenWalk;
  friend class LiftedWalk;
  friend class Constraint;
  /// The upper frames of a stack, node and count by turns, counts that no token can tell apart made equal.
  struct Cut {
    std::vector<uint32_t> frames;
    Matcher::Frame below = Matcher::kEnd;
  };
  using Cuts = std::set<std::vector<uint32_t>>;
  using Pieces = std::vector<std::shared_ptr<const Piece>>;
  /// Cuts with a frame of a repetition in them lifted (Matcher::lifted_end): one walk finds their pieces for all counts
  /// from `first` to `last`. `at` is the count itself. `last` is 0 where nothing is lifted.
  struct Lift {
    Cuts cuts;
    uint32_t at = 0, first = 0, last = 0;
  };
  struct Entry {
    std::string key;
    Pieces pieces;  ///< one, or one for each count of a lift; none where lifted states would be too many
    size_t size() const;
  };

  CompiledGrammar(Grammar grammar, std::shared_ptr<const Vocabulary> vocabulary, size_t max_cache_bytes);
  /// The upper frames of a stack, down to the end of so many rules.
  Cut cut(const Matcher& matcher, Matcher::Frame top, int n_rules) const;
  Lift find_lift(const Cuts& cuts) const;
  /// The piece of cut-off frames for the tokens below trie node `from`; `may_lift` where a walk without other pieces
  /// finds it. The caller holds the mutex.
  std::shared_ptr<const Piece> piece(const Cuts& cuts, uint32_t from, int n_rules, bool may_lift) const;
  /// `base`: a mask to share where it is most of the new one, or null.
  std::shared_ptr<const Piece> make_piece(const std::vector<uint64_t>& mask,
                                          const std::shared_ptr<const std::vector<uint64_t>>& base,
                                          std::vector<uint32_t> exits, uint32_t reach) const;
  Pieces find_pieces(const Lift& lift, uint32_t from, int n_rules) const;

  const Grammar grammar_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const size_t max_cache_bytes_;
  mutable std::mutex mutex_;                // guards all below
  mutable std::optional<Matcher> matcher_;  // of the pieces
  mutable size_t cache_bytes_ = 0;          // of entries and the masks they share
  mutable std::list<Entry> entries_;        // the last used first
  mutable std::unordered_map<std::string_view, std::list<Entry>::iterator> places_;
};

/// One answer's constraint. Not thread safe; the compiled grammar and its mask cache are shared. mask(), mask_to_end()
/// and accept() throw TooAmbiguous where the grammar is (see Matcher::after).
class Constraint {
 public:
  explicit Constraint(std::shared_ptr<const CompiledGrammar> compiled);

  /// Bits of the tokens that may come next: vocabulary.size() bits in 64-bit words, token t in bit t % 64 of word t /
  /// 64. Valid until accept(). Empty after an end token; otherwise at least one is set, unless the text may end and the
  /// vocabulary has no end token.
  std::span<const uint64_t> mask();
  /// The tokens of mask() that lie on a shortest way to the end, in bytes: a server that samples from these ends the
  /// text within bytes_to_end() tokens and an end token.
  std::span<const uint64_t> mask_to_end();
  /// Bytes of the shortest text that ends the answer.
  uint32_t bytes_to_end() const { return matcher_.shortest(state_); }
  /// False if the token is not allowed (nothing changes then).
  bool accept(int32_t token);
  /// A text in place of tokens; false if it is not allowed.
  bool accept_text(std::string_view bytes);
  /// Nothing but the end may follow.
  bool finished() const { return ended_ || matcher_.must_end(state_); }
  bool can_end() const { return matcher_.can_end(state_); }

 private:
  void start_mask();

  std::shared_ptr<const CompiledGrammar> compiled_;
  Matcher matcher_;
  Matcher::State state_;
  bool ended_ = false;
  enum class Held : uint8_t { nothing, all, to_end } held_ = Held::nothing;
  std::vector<uint64_t> mask_;
};

}  // namespace ridge::grammar
