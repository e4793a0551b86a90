#include "text/marks.h"

#include <algorithm>

namespace ridge::text {
namespace {

constexpr char kBegin = '\xFF', kEnd = '\xFE';

std::string token_of(std::string_view mark) { return kBegin + std::string(mark) + kEnd; }

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

}  // namespace

std::string Marks::in_text(std::string_view mark) const {
  return std::ranges::find(control_, mark) == control_.end() ? std::string(mark) : token_of(mark);
}

std::vector<std::string> Marks::in_text(std::span<const std::string_view> marks) const {
  std::vector<std::string> made;
  for (const std::string_view mark : marks) made.push_back(in_text(mark));
  return made;
}

std::string Marks::tokens_in(std::string text) const {
  for (const std::string& mark : control_) replace_all(text, mark, token_of(mark));
  return text;
}

std::string Marks::visible(std::string text) const {
  if (text.find(kBegin) == text.npos) return text;
  for (const std::string& mark : control_) replace_all(text, token_of(mark), "");
  return text;
}

Place first_of(std::string_view text, std::span<const std::string> marks, Place found) {
  for (const std::string& mark : marks)
    if (const size_t at = text.find(mark); at < found.at) found = {at, mark};
  return found;
}

size_t partial_mark(std::string_view text, std::span<const std::string> marks) {
  size_t longest = 0;
  for (const std::string_view mark : marks)
    for (size_t n = std::min(mark.size() - 1, text.size()); n > longest; --n)
      if (text.ends_with(mark.substr(0, n))) longest = n;
  return longest;
}

}  // namespace ridge::text
