#include "io/pretokenizer.h"

#include <utf8proc.h>

#include <optional>

#include "io/utf8.h"

namespace ridge::io {

namespace {

enum class Class : uint8_t { letter, number, newline, space, symbol, end };  // newline: \r or \n; space: other \s

bool is_white_space(uint32_t code) {  // the Unicode property White_Space, which \s means
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

Class class_of(uint32_t code) {
  if (code == '\r' || code == '\n') return Class::newline;
  if (is_white_space(code)) return Class::space;
  if (code < 0x80) {
    if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z') return Class::letter;
    return code >= '0' && code <= '9' ? Class::number : Class::symbol;
  }
  const utf8proc_category_t category = utf8proc_category(utf8proc_int32_t(code));
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) return Class::letter;
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) return Class::number;
  return Class::symbol;
}

bool is_space(Class c) { return c == Class::space || c == Class::newline; }

/// A place in the text and the character there.
class Cursor {
 public:
  Cursor(std::string_view text, size_t at) : text_(text), at_(at) { look(); }
  size_t at() const { return at_; }
  Class cls() const { return class_; }
  uint32_t code() const { return char_.code; }
  void advance() {
    at_ += char_.length;
    look();
  }
  template <class Predicate>
  void skip_while(Predicate&& predicate) {
    while (class_ != Class::end && predicate(class_)) advance();
  }

 private:
  void look() {
    if (at_ == text_.size()) {
      char_ = {};
      class_ = Class::end;
      return;
    }
    char_ = first_utf8(text_.substr(at_));
    class_ = char_.kind == Utf8Kind::valid ? class_of(char_.code) : Class::symbol;
  }

  std::string_view text_;
  size_t at_;
  Utf8Char char_;
  Class class_ = Class::end;
};

/// 's 't 're 've 'm 'll 'd: the end of one that starts at `begin`, or nothing. Without case, U+017F (long s) is an s
/// too.
std::optional<size_t> contraction_end(std::string_view text, size_t begin, bool any_case) {
  Cursor c(text, begin);
  if (c.code() != '\'') return std::nullopt;
  const auto letter = [&]() -> uint32_t {
    const uint32_t code = c.code();
    if (!any_case) return code;
    return code == 0x17F ? 's' : code >= 'A' && code <= 'Z' ? code + 32 : code;
  };
  c.advance();
  const uint32_t first = letter();
  if (c.cls() != Class::letter) return std::nullopt;
  c.advance();
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return c.at();
  const uint32_t second = letter();
  const bool two =
      (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  if (!two) return std::nullopt;
  c.advance();
  return c.at();
}

/// \s+(?!\S)|\s+ at a space: a run before more text leaves its last character to what follows.
size_t space_run_end(std::string_view text, size_t begin) {
  Cursor c(text, begin);
  size_t last = begin;
  while (is_space(c.cls())) {
    last = c.at();
    c.advance();
  }
  return c.cls() == Class::end || last == begin ? c.at() : last;
}

/// \s*[\r\n]+ : the end of the last newline of the run of spaces at `begin`, or nothing.
std::optional<size_t> newline_run_end(std::string_view text, size_t begin) {
  std::optional<size_t> end;
  for (Cursor c(text, begin); is_space(c.cls());) {
    const bool newline = c.cls() == Class::newline;
    c.advance();
    if (newline) end = c.at();
  }
  return end;
}

size_t gpt2_end(std::string_view text, size_t begin) {
  if (const auto end = contraction_end(text, begin, false)) return *end;
  Cursor c(text, begin);
  if (c.code() == ' ') c.advance();
  const Class run = c.cls();
  if (run == Class::end || is_space(run)) return space_run_end(text, begin);
  c.skip_while([&](Class next) { return next == run; });
  return c.at();
}

size_t llama_bpe_end(std::string_view text, size_t begin, int max_digits) {
  if (const auto end = contraction_end(text, begin, true)) return *end;
  const auto letter = [](Class next) { return next == Class::letter; };
  Cursor c(text, begin);
  const Class first = c.cls();
  const bool blank = c.code() == ' ';
  if (first == Class::number) {
    for (int digits = 0; digits < max_digits && c.cls() == Class::number; ++digits) c.advance();
    return c.at();
  }
  if (first != Class::newline) {
    c.advance();
    if (first == Class::letter || c.cls() == Class::letter) {
      c.skip_while(letter);
      return c.at();
    }
  }
  if (first == Class::symbol || (blank && c.cls() == Class::symbol)) {
    c.skip_while([](Class next) { return next == Class::symbol; });
    c.skip_while([](Class next) { return next == Class::newline; });
    return c.at();
  }
  if (const auto end = newline_run_end(text, begin)) return *end;
  return space_run_end(text, begin);
}

}  // namespace

size_t pretoken_end(PreTokenizer pre, std::string_view text, size_t begin) {
  switch (pre) {
    case PreTokenizer::gpt2: return gpt2_end(text, begin);
    case PreTokenizer::llama_bpe: return llama_bpe_end(text, begin, 3);
    case PreTokenizer::qwen2: return llama_bpe_end(text, begin, 1);
    case PreTokenizer::none: break;
  }
  return text.size();
}

std::string_view pretokenizer_pattern(PreTokenizer pre) {
  switch (pre) {
    case PreTokenizer::gpt2: return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    case PreTokenizer::llama_bpe:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
             R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
    case PreTokenizer::qwen2:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
             R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
    case PreTokenizer::none: break;
  }
  return "";
}

}  // namespace ridge::io
