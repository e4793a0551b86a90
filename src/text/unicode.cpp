#include "text/unicode.h"

#include <algorithm>
#include <cstdint>

#include "base/utf8.h"

namespace ridge::text {
namespace {

struct Code {
  uint32_t code;
  size_t length;
};

Code first(std::string_view text) {
  const Utf8Char next = first_utf8(text);
  return next.kind == Utf8Kind::valid ? Code{next.code, next.length} : Code{0xFFFD, 1};
}

/// Where the code point that ends at `end` begins.
size_t last_begin(std::string_view text, size_t end) {
  for (size_t back = std::min<size_t>(4, end); back > 1; --back)
    if (first(text.substr(end - back, back)).length == back) return end - back;
  return end - 1;
}

std::string mapped(std::string_view text, char low, char high, int shift) {
  std::string out(text);
  for (char& c : out)
    if (c >= low && c <= high) c = char(c + shift);
  return out;
}

}  // namespace

size_t first_length(std::string_view text) { return first(text).length; }
uint32_t first_code(std::string_view text) { return first(text).code; }

size_t count_codes(std::string_view text) {
  size_t n = 0;
  for (; !text.empty(); ++n) text.remove_prefix(first(text).length);
  return n;
}

size_t code_position(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += first(text.substr(at)).length;
  return at;
}

bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_line_end(uint32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_printable(uint32_t c) {
  if (c == ' ') return true;
  return !(c < 0x20 || is_space(c) || (c >= 0x7F && c < 0xA1) || c == 0xAD || (c >= 0x200B && c <= 0x200F) ||
           (c >= 0x202A && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || (c >= 0xE000 && c <= 0xF8FF) ||
           c == 0xFEFF || (c >= 0xFFF0 && c <= 0xFFFB) || (c & 0xFFFE) == 0xFFFE || c >= 0xE0000);
}

std::string_view strip(std::string_view text, const std::string* chars, bool left, bool right) {
  // Bytes that are not UTF-8 are only equal to themselves.
  const auto number = [](std::string_view code) {
    const Code first_of = first(code);
    const bool valid = first_of.length > 1 || first_of.code < 0x80;
    return valid ? size_t(first_of.code) : 0x110000 + size_t(uint8_t(code[0]));
  };
  std::vector<bool> known;
  for (std::string_view rest = chars ? *chars : std::string_view(); !rest.empty();
       rest.remove_prefix(first(rest).length)) {
    if (number(rest) >= known.size()) known.resize(number(rest) + 1);
    known[number(rest)] = true;
  }
  const auto goes = [&](std::string_view code) {
    return chars == nullptr ? is_space(first(code).code) : number(code) < known.size() && known[number(code)];
  };
  while (left && !text.empty() && goes(text)) text.remove_prefix(first(text).length);
  while (right && !text.empty()) {
    const size_t begin = last_begin(text, text.size());
    if (!goes(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return text;
}

void each_line(std::string_view text, const std::function<void(std::string_view line)>& take) {
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const Code code = first(text.substr(at));
    const size_t end = at;
    at += code.length;
    if (!is_line_end(code.code)) continue;
    if (code.code == '\r' && at < text.size() && text[at] == '\n') ++at;
    take(text.substr(start, end - start));
    start = at;
  }
  if (start < text.size()) take(text.substr(start));
}

std::string lower(std::string_view text) { return mapped(text, 'A', 'Z', 'a' - 'A'); }
std::string upper(std::string_view text) { return mapped(text, 'a', 'z', 'A' - 'a'); }

}  // namespace ridge::text
