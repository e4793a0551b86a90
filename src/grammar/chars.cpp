#include "grammar/chars.h"

#include <algorithm>

#include "base/utf8.h"

namespace ridge::grammar {

CharSet::CharSet(std::initializer_list<CharRange> ranges) : CharSet(std::vector<CharRange>(ranges)) {}

CharSet::CharSet(std::vector<CharRange> ranges) {
  std::ranges::sort(ranges, {}, &CharRange::first);  // so that each one goes to the end
  for (const CharRange& range : ranges) add(range);
}

void CharSet::add(CharRange range) {
  range.last = std::min<uint32_t>(range.last, 0x10FFFF);
  if (range.first <= 0xDFFF && range.last >= 0xD800) {
    if (range.first < 0xD800) add({range.first, 0xD7FF});
    if (range.last > 0xDFFF) add({0xE000, range.last});
    return;
  }
  if (range.first > range.last) return;
  const auto begin =
      std::ranges::partition_point(ranges_, [&](const CharRange& other) { return other.last + 1 < range.first; });
  if (begin != ranges_.end() && begin->first <= range.first && range.last <= begin->last) return;
  auto end = begin;
  for (; end != ranges_.end() && end->first <= range.last + 1; ++end) {
    range.first = std::min(range.first, end->first);
    range.last = std::max(range.last, end->last);
  }
  ranges_.insert(ranges_.erase(begin, end), range);
}

void CharSet::add(const CharSet& other) {
  for (const CharRange& range : other.ranges_) add(range);
}

CharSet CharSet::inverted() const {
  CharSet result;
  uint32_t next = 0;
  for (const CharRange& range : ranges_) {
    if (range.first > next) result.add({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= 0x10FFFF) result.add({next, 0x10FFFF});
  return result;
}

CharSet CharSet::without(const CharSet& other) const {
  CharSet outside = inverted();
  outside.add(other);
  return outside.inverted();
}

bool CharSet::contains(uint32_t code) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const CharRange& range) { return range.first <= code && code <= range.last; });
}

void utf8_ranges(CharRange range, const std::function<void(const std::vector<ByteRange>&)>& emit) {
  const auto cut = [&](uint32_t last_of_left) {
    utf8_ranges({range.first, last_of_left}, emit);
    utf8_ranges({last_of_left + 1, range.last}, emit);
  };
  for (const uint32_t limit : {0x7Fu, 0x7FFu, 0xFFFFu})
    if (range.first <= limit && range.last > limit) return cut(limit);
  const std::string low = utf8(range.first), high = utf8(range.last);
  // Where leading bytes differ, all that follows must be free: cut until it is.
  for (size_t i = 1; i < low.size(); ++i) {
    const uint32_t mask = (1u << (6 * i)) - 1;
    if ((range.first & ~mask) == (range.last & ~mask)) continue;
    if ((range.first & mask) != 0) return cut(range.first | mask);
    if ((range.last & mask) != mask) return cut((range.last & ~mask) - 1);
  }
  std::vector<ByteRange> bytes;
  for (size_t i = 0; i < low.size(); ++i) bytes.push_back({uint8_t(low[i]), uint8_t(high[i])});
  emit(bytes);
}

std::optional<std::vector<uint32_t>> code_points(std::string_view text) {
  std::vector<uint32_t> codes;
  while (!text.empty()) {
    const Utf8Char next = first_utf8(text);
    if (next.kind != Utf8Kind::valid) return std::nullopt;
    codes.push_back(next.code);
    text.remove_prefix(next.length);
  }
  return codes;
}

std::optional<uint32_t> hex_digit(char c) {
  if (c >= '0' && c <= '9') return uint32_t(c - '0');
  const auto lower = uint32_t(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? std::optional(lower - 'a' + 10) : std::nullopt;
}

}  // namespace ridge::grammar
