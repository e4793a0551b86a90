#include "io/pretokenizer_regex.h"

#include <utf8proc.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/utf8.h"

namespace ridge::io {
namespace {

constexpr uint32_t kMany = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kNoCode = std::numeric_limits<uint32_t>::max();

/// The Unicode property White_Space, which \s means.
constexpr std::pair<uint32_t, uint32_t> kSpaces[] = {
    {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
    {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};

constexpr std::pair<std::string_view, uint32_t> kCategories[] = {
    {"Lu", 1u << UTF8PROC_CATEGORY_LU},
    {"Ll", 1u << UTF8PROC_CATEGORY_LL},
    {"Lt", 1u << UTF8PROC_CATEGORY_LT},
    {"Lm", 1u << UTF8PROC_CATEGORY_LM},
    {"Lo", 1u << UTF8PROC_CATEGORY_LO},
    {"L", (1u << (UTF8PROC_CATEGORY_LO + 1)) - (1u << UTF8PROC_CATEGORY_LU)},
    {"M", (1u << (UTF8PROC_CATEGORY_ME + 1)) - (1u << UTF8PROC_CATEGORY_MN)},
    {"N", (1u << (UTF8PROC_CATEGORY_NO + 1)) - (1u << UTF8PROC_CATEGORY_ND)},
    {"P", (1u << (UTF8PROC_CATEGORY_PO + 1)) - (1u << UTF8PROC_CATEGORY_PC)},
    {"S", (1u << (UTF8PROC_CATEGORY_SO + 1)) - (1u << UTF8PROC_CATEGORY_SM)}};

bool in_ranges(auto&& ranges, uint32_t code) {
  return std::ranges::any_of(ranges, [&](const auto& range) { return code >= range.first && code <= range.second; });
}

/// The length in bytes of the character at `at` when it is in the set, else 0.
size_t length_in(const CodeSet& set, std::string_view text, size_t at) {
  if (at == text.size()) return 0;
  const auto byte = uint8_t(text[at]);
  if (byte < 0x80) return set.ascii[byte];
  const Utf8Char next = first_utf8(text.substr(at));
  const bool valid = next.kind == Utf8Kind::valid;
  const uint32_t category = valid ? uint32_t(utf8proc_category(utf8proc_int32_t(next.code))) : 0;  // not assigned
  return set.has(valid ? next.code : kNoCode, category) ? next.length : 0;
}

}  // namespace

bool is_space_at(std::string_view text, size_t at) { return in_ranges(kSpaces, first_utf8(text.substr(at)).code); }

size_t previous_character(std::string_view text, size_t at) {
  while (at > 0 && (uint8_t(text[--at]) & 0xC0) == 0x80) continue;
  return at;
}

void CodeSet::finish() {
  for (uint32_t code = 0; code < 128; ++code)
    ascii[code] = has(code, uint32_t(utf8proc_category(utf8proc_int32_t(code))));
}

bool CodeSet::has(uint32_t code, uint32_t category) const {
  return ((categories >> category & 1) != 0 || in_ranges(ranges, code)) != negated;
}

class SplitRegex::Parser {
 public:
  explicit Parser(std::string_view pattern) : rest_(pattern) {}

  std::vector<Items> alternatives() {
    std::vector<Items> all(1);
    for (; !rest_.empty() && !rest_.starts_with(')');) {
      if (take("|")) all.emplace_back();
      else all.back().push_back(item());
    }
    return all;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  [[noreturn]] void refuse() const { throw std::logic_error("split pattern: not known: " + std::string(rest_)); }

  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  uint32_t take_code() {
    const Utf8Char next = first_utf8(rest_);
    rest_.remove_prefix(next.length);
    return next.code;
  }

  /// \p{..}, \s or a character, escaped or not; the character, or kNoCode for a class.
  uint32_t member(CodeSet& set) {
    if (take("\\p{")) {
      const auto row = std::ranges::find(kCategories, rest_.substr(0, rest_.find('}')),
                                         &std::pair<std::string_view, uint32_t>::first);
      if (row == std::end(kCategories)) refuse();
      set.categories |= row->second;
      rest_.remove_prefix(row->first.size() + 1);
      return kNoCode;
    }
    if (take("\\s")) {
      set.ranges.insert(set.ranges.end(), std::begin(kSpaces), std::end(kSpaces));
      return kNoCode;
    }
    if (take("\\r")) return '\r';
    if (take("\\n")) return '\n';
    take("\\");
    return take_code();
  }
  CodeSet char_class() {
    CodeSet set{.negated = take("^")};
    while (!take("]")) {
      const uint32_t first = member(set);
      if (first == kNoCode) continue;
      set.ranges.emplace_back(first, take("-") ? member(set) : first);
    }
    return set;
  }
  /// A character outside of classes; behind (?i: the other case too, and for s the long s.
  CodeSet literal() {
    CodeSet set;
    const uint32_t code = member(set);
    if (code == kNoCode) return set;
    set.ranges.emplace_back(code, code);
    if (any_case_ && code >= 'a' && code <= 'z') set.ranges.emplace_back(code - 32, code - 32);
    if (any_case_ && code == 's') set.ranges.emplace_back(0x17F, 0x17F);
    return set;
  }
  Item item() {
    Item item;
    if (take("(?!\\S)")) {
      item.kind = Item::Kind::no_text;
      return item;
    }
    if (take("(?i:")) {
      item.kind = Item::Kind::group;
      any_case_ = true;
      item.group = alternatives();
      any_case_ = false;
      if (!take(")")) refuse();
    } else if (rest_.starts_with('(') || rest_.starts_with('$')) {
      refuse();
    } else {
      item.set = take("[") ? char_class() : literal();
      item.set.finish();
    }
    if (take("?")) item.min = 0;
    else if (take("*")) item.min = 0, item.max = kMany;
    else if (take("+")) item.max = kMany;
    else if (take("{1,3}")) item.max = 3;
    return item;
  }

  std::string_view rest_;
  bool any_case_ = false;
};

SplitRegex::SplitRegex(std::string_view pattern) : trailing_space_(pattern == R"(\s+$)") {
  Parser parser(trailing_space_ ? pattern.substr(0, pattern.size() - 1) : pattern);
  for (Items& items : parser.alternatives()) {
    const std::bitset<128> starts = starts_of(items);
    alternatives_.push_back({std::move(items), starts});
  }
  if (!parser.at_end()) throw std::logic_error("split pattern: a bracket is closed that was not opened");
}

std::bitset<128> SplitRegex::starts_of(const Items& items) {
  std::bitset<128> starts;
  for (const Item& item : items) {
    if (item.kind == Item::Kind::set) starts |= item.set.ascii;
    for (const Items& alternative : item.group) starts |= starts_of(alternative);
    if (item.min > 0) break;
  }
  return starts;
}

std::optional<size_t> SplitRegex::match(const Items& items, size_t first, std::string_view text, size_t at) {
  if (first == items.size()) return at;
  const Item& item = items[first];
  if (item.kind == Item::Kind::no_text) {
    if (at < text.size() && !is_space_at(text, at)) return std::nullopt;
    return match(items, first + 1, text, at);
  }
  if (item.kind == Item::Kind::group) {
    for (const Items& alternative : item.group)
      if (const auto end = match(alternative, 0, text, at)) return match(items, first + 1, text, *end);
    return item.min == 0 ? match(items, first + 1, text, at) : std::nullopt;
  }
  size_t end = at;
  uint32_t n = 0;
  for (size_t length; n < item.max && (length = length_in(item.set, text, end)) != 0; ++n) end += length;
  for (; n >= item.min; --n) {
    if (const auto found = match(items, first + 1, text, end)) return found;
    if (n == 0) break;
    end = n == 1 ? at : previous_character(text, end);
  }
  return std::nullopt;
}

std::optional<size_t> SplitRegex::match_end(std::string_view text, size_t begin) const {
  const auto byte = uint8_t(text[begin]);
  for (const Alternative& alternative : alternatives_)
    if (byte >= 0x80 || alternative.starts[byte])
      if (const auto end = match(alternative.items, 0, text, begin); end && *end > begin) return end;
  return std::nullopt;
}

/// Looking for \s+$ from every space would be quadratic.
size_t SplitRegex::first_start(std::string_view text) const {
  if (!trailing_space_) return 0;
  size_t start = text.size();
  for (size_t at = start; at > 0 && is_space_at(text, at = previous_character(text, at));) start = at;
  return start;
}

}  // namespace ridge::io
