// Finding special tokens in text: leftmost first, then longest.
#include <algorithm>

#include <utf8proc.h>

#include "base/utf8.h"
#include "base/work_limit.h"
#include "io/pretokenizer_regex.h"
#include "io/tokenizer_parts.h"

namespace ridge::io {
namespace {

/// Whether the character at `at` is what \w means: letters, marks, digits, connectors, joiners, letters in circles.
bool is_word_at(std::string_view text, size_t at) {
  const Utf8Char next = first_utf8(text.substr(at));
  if (next.kind != Utf8Kind::valid) return false;
  const uint32_t code = next.code;
  switch (utf8proc_category(utf8proc_int32_t(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
  }
  return code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9) ||
         (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
         (code >= 0x1F170 && code <= 0x1F189);
}

}  // namespace

std::optional<std::pair<size_t, size_t>> apply_rule(const MatchRule& rule, std::string_view text, size_t begin,
                                                    size_t end, size_t floor) {
  if (rule.single_word && begin > 0 && is_word_at(text, previous_character(text, begin))) return std::nullopt;
  if (rule.single_word && end < text.size() && is_word_at(text, end)) return std::nullopt;
  while (rule.strip_left && begin > floor && is_space_at(text, previous_character(text, begin)))
    begin = previous_character(text, begin);
  while (rule.strip_right && end < text.size() && is_space_at(text, end)) end += first_utf8(text.substr(end)).length;
  return std::pair(begin, end);
}

void SpecialMatcher::add(std::string text, int32_t id) {
  if (text.empty()) return;
  first_[uint8_t(text[0])] = true;
  entries_.push_back({std::move(text), id});
}

void SpecialMatcher::finish() {
  std::ranges::stable_sort(entries_, {}, &Entry::text);  // equal texts keep id order, so the lowest id is met first
}

SpecialMatcher::Match SpecialMatcher::find(std::string_view text, size_t begin) const {
  for (; begin < text.size(); ++begin) {
    WorkLimit::check();
    if (!first_[uint8_t(text[begin])]) continue;
    Match match;
    auto low = entries_.begin(), high = entries_.end();
    for (size_t length = 1; begin + length <= text.size() && low != high; ++length) {
      // Entries in [low, high) share the first length - 1 bytes; those that end there sort first and are passed over.
      const auto at = [&](const Entry& e) { return e.text.size() < length ? -1 : int(uint8_t(e.text[length - 1])); };
      const int byte = uint8_t(text[begin + length - 1]);
      low = std::ranges::lower_bound(low, high, byte, {}, at);
      high = std::ranges::upper_bound(low, high, byte, {}, at);
      if (low != high && low->text.size() == length) match = {begin, length, low->id};
    }
    if (match.id != kNoToken) return match;
  }
  return {};
}

}  // namespace ridge::io
