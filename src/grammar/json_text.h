// How JSON is spelled, as parts of a grammar.
#pragma once

#include <map>
#include <optional>

#include "grammar/grammar.h"

namespace ridge::grammar {

inline constexpr uint32_t kMaxIndent = 32;                 ///< blanks after the end of a line
inline constexpr uint32_t kMaxDigits = 16;                 ///< of a number without bounds, before and after the point
inline constexpr int64_t kMaxBound = 1000000000000000000;  ///< of numbers

/// Bounds of a number; those of number_between() are whole.
struct Bounds {
  std::optional<int64_t> min, max;
  bool above_min = false, below_max = false;  ///< the bound itself is out
};

class JsonText {
 public:
  explicit JsonText(Builder& builder);

  /// Between two parts: nothing, a space, or an end of line and up to kMaxIndent blanks.
  Expr blank() const { return blank_; }
  /// After a colon: nothing or a space.
  Expr space() const { return space_; }
  /// Any value.
  Expr any() const { return any_; }
  Expr any_object() const { return any_object_; }
  Expr any_array() const { return any_array_; }
  Expr any_string() const { return any_string_; }
  Expr boolean() const { return boolean_; }

  /// A string of min to max characters, escapes counted as what they stand for.
  Expr string(uint32_t min, uint32_t max);
  /// A string whose contents are an expression made of spelled() and literals.
  Expr string_of(Expr contents);
  /// One character of the set: as it is, or escaped where it must be.
  Expr spelled(const CharSet& set);
  /// A string without escapes that is none of the names (code points).
  Expr string_other_than(std::vector<std::vector<uint32_t>> names);

  /// `open`, then `first` and what follows it, then `close`; with nothing in between too if `may_be_empty`.
  Expr bracketed(std::string_view open, Expr contents, bool may_be_empty, std::string_view close);
  Expr comma() const { return comma_; }
  Expr member(Expr name, Expr value) { return builder_.sequence({name, colon_, value}); }

  /// min <= value <= max, above_min and below_max not set; no text if there is none. Without bounds kMaxDigits digits.
  Expr integer(const Bounds& bounds);
  /// Any number, with an exponent if there are no bounds. Bounds that are out must be under 10^9: six digits follow the
  /// point then, and no number of so many digits is rounded to the bound.
  Expr number(const Bounds& bounds);

 private:
  Expr digits(uint32_t min, uint32_t max) { return builder_.repeat(digit_, min, max); }
  Expr range_of_bytes(char first, char last);
  Expr same_length(std::string_view min, std::string_view max);
  Expr whole(uint64_t min, uint64_t max);
  Expr magnitude(uint64_t min, bool above_min, std::optional<uint64_t> max, bool below_max, uint32_t places);
  Expr rule_of(std::string name, Expr body);
  Expr others_of(std::span<const std::vector<uint32_t>> names, size_t skip);

  Builder& builder_;
  Expr blank_, space_, comma_, colon_, digit_, plain_, character_, boolean_, any_, any_object_, any_array_, any_string_;
  std::map<std::pair<uint32_t, uint32_t>, Expr> strings_;
};

}  // namespace ridge::grammar
