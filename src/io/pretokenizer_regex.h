// The part of regular expressions that split patterns are written in.
//
// Known: | ? * + {m,n}, [..] with ranges, ^ and escapes, \p{..} (L, M, N, P, S and their parts), \s \r \n, groups of
// literals (?i:..), (?!\S), and \s+$ alone. A pattern is compiled from our own list, never from a file: an item gives
// characters back only where a list of a few items asks for it, which in those patterns keeps time linear in the text.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace ridge::io {

/// Whether the character at `at` < text.size() is white space, as \s has it.
bool is_space_at(std::string_view text, size_t at);
/// Where the character before `at` > 0 begins; in bytes that are not UTF-8, one of them.
size_t previous_character(std::string_view text, size_t at);

/// A set of characters.
struct CodeSet {
  uint32_t categories = 0;  ///< bits by utf8proc_category_t
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  bool negated = false;
  std::bitset<128> ascii;  ///< the answers for ASCII, by finish()

  void finish();
  bool has(uint32_t code, uint32_t category) const;
};

class SplitRegex {
 public:
  /// Throws std::logic_error for what is not in the part above.
  explicit SplitRegex(std::string_view pattern);

  /// The end of the match that starts at `begin` and is not empty, or nothing. The text ends at text.size().
  std::optional<size_t> match_end(std::string_view text, size_t begin) const;
  /// The first place from which match_end() can find something: text.size() or less.
  size_t first_start(std::string_view text) const;

 private:
  struct Item {
    enum class Kind : uint8_t { set, group, no_text };
    Kind kind = Kind::set;
    uint32_t min = 1, max = 1;
    CodeSet set;
    std::vector<std::vector<Item>> group;
  };
  using Items = std::vector<Item>;
  class Parser;
  struct Alternative {
    Items items;
    std::bitset<128> starts;  ///< ASCII that a match may start with
  };

  static std::bitset<128> starts_of(const Items& items);
  static std::optional<size_t> match(const Items& items, size_t first, std::string_view text, size_t at);

  std::vector<Alternative> alternatives_;
  bool trailing_space_ = false;
};

}  // namespace ridge::io
