// Marks in answers of models: words that part reasoning, calls and messages. A vocabulary may have a mark as a control
// token; then that token is the mark, and text that spells it is text.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ridge::text {

class Marks {
 public:
  /// `control`: the marks that are control tokens.
  explicit Marks(std::vector<std::string> control) : control_(std::move(control)) {}

  /// How a mark stands in a text that is read: a control token between two bytes that UTF-8 does not have.
  std::string in_text(std::string_view mark) const;
  std::vector<std::string> in_text(std::span<const std::string_view> marks) const;
  /// A text that spells control tokens, as a prompt does, with these tokens.
  std::string tokens_in(std::string text) const;
  /// Text that people may see, without control tokens.
  std::string visible(std::string text) const;

 private:
  std::vector<std::string> control_;
};

/// Where the first of `marks` stands in `text` and which it is; `found` where none stands in front of it.
struct Place {
  size_t at;
  std::string_view mark = {};
};
Place first_of(std::string_view text, std::span<const std::string> marks, Place found);

/// Length of the longest end of `text` that one of `marks` begins with.
size_t partial_mark(std::string_view text, std::span<const std::string> marks);

}  // namespace ridge::text
