// Finding special tokens in text: leftmost first, then longest.
#include <algorithm>

#include "io/tokenizer_parts.h"

namespace ridge::io {

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
