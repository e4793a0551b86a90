#include <algorithm>
#include <charconv>

#include "base/utf8.h"
#include "text/jinja_parser.h"
#include "text/unicode.h"

namespace ridge::text::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || uint8_t(c) >= 0x80;
}

/// Line ends become \n; one at the end of the template is dropped.
std::string with_line_feeds(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t tag = next_tag();
      text_before(tag);
      at_ = tag;
      if (at_ < source_.size()) read_tag();
    }
    put(TokenKind::end, "end of the template", at_);
    return std::move(tokens_);
  }

 private:
  size_t next_tag() const {
    for (size_t tag = source_.find('{', at_); tag != source_.npos; tag = source_.find('{', tag + 1))
      if (tag + 1 < source_.size() && std::string_view("%{#").find(source_[tag + 1]) != std::string_view::npos)
        return tag;
    return source_.size();
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  bool skip(std::string_view what) {
    if (!source_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  void skip_blanks() { at_ = source_.size() - strip(source_.substr(at_), nullptr, true, false).size(); }

  /// Tokens come in the order of the source, so its lines are counted once.
  void put(TokenKind kind, std::string text, size_t begin) {
    for (; counted_ < begin; ++counted_)
      if (source_[counted_] == '\n') ++line_, line_start_ = counted_ + 1;
    tokens_.push_back({kind, std::move(text), line_, int(begin - line_start_) + 1});
  }

  [[noreturn]] void wrong(size_t begin, std::string why) {
    put(TokenKind::end, "", begin);
    throw Trouble{std::move(why), tokens_.back().line, tokens_.back().column};
  }

  /// The text up to a tag, without the white space that the tag's sign or lstrip_blocks takes from it.
  void text_before(size_t tag) {
    std::string_view text = source_.substr(at_, tag - at_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (tag < source_.size() && sign == '-') {
      text = strip(text, nullptr, false, true);
    } else if (tag < source_.size() && sign != '+' && source_[tag + 1] != '{') {
      const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
      const bool at_line_start = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
      if (at_line_start && strip(text.substr(line), nullptr, true, false).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) put(TokenKind::text, std::string(text), at_);
  }

  /// The end of a block or comment: -%}, +%} or %} with the line feed that trim_blocks takes.
  bool close(std::string_view end) {
    const char sign = peek();
    if (!source_.substr(at_ + (sign == '-' || sign == '+')).starts_with(end)) return false;
    if (sign == '+' && end == "}}") return false;
    at_ += end.size() + (sign == '-' || sign == '+');
    if (sign == '-') skip_blanks();
    else if (sign != '+' && end != "}}") skip("\n");
    return true;
  }

  void read_tag() {
    const size_t begin = at_;
    const char kind = source_[at_ + 1];
    at_ += 2;
    if (peek() == '-' || peek() == '+') ++at_;
    if (kind == '#') return read_comment(begin);
    if (kind == '%' && read_raw(begin)) return;
    put(kind == '%' ? TokenKind::open_block : TokenKind::open_value, kind == '%' ? "{%" : "{{", begin);
    read_tokens(kind == '%' ? "%}" : "}}");
  }

  void read_comment(size_t begin) {
    const size_t end = source_.find("#}", at_);
    if (end == source_.npos) wrong(begin, "a comment has no end");
    at_ = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+') ? end - 1 : end;
    close("#}");
  }

  bool read_raw(size_t begin) {
    const size_t start = at_;
    const auto is_tag = [&](std::string_view name) { return skip_blanks(), skip(name) && (skip_blanks(), true); };
    if (!is_tag("raw") || !(peek() == '-' || peek() == '%')) return at_ = start, false;
    const bool trims = peek() == '-';
    if (!skip(trims ? "-%}" : "%}")) return at_ = start, false;
    if (trims) skip_blanks();
    const size_t text = at_;
    for (size_t tag = source_.find("{%", at_); tag != source_.npos; tag = source_.find("{%", tag + 1)) {
      at_ = tag + 2;
      if (peek() == '-' || peek() == '+') ++at_;
      if (!is_tag("endraw") || !close("%}")) continue;
      const size_t after = at_;
      at_ = text;
      text_before(tag);
      at_ = after;
      return true;
    }
    wrong(begin, "'raw' has no 'endraw'");
  }

  void read_tokens(std::string_view end) {
    std::string brackets;  // those that are open: }} inside of them is no end
    const size_t begin = at_;
    for (;;) {
      skip_blanks();
      const size_t here = at_;
      if (at_ >= source_.size()) wrong(begin, fmt::format("a tag has no end '{}'", end));
      if (brackets.empty() && close(end)) return put(TokenKind::close, std::string(end), here);
      const char c = peek();
      if (c == '"' || c == '\'') put(TokenKind::string, read_string(), here);
      else if (is_digit(c)) read_number();
      else if (is_name(c)) {
        while (is_name(peek())) ++at_;
        if (at_ - here > kMaxName) wrong(here, fmt::format("a name has more than {} bytes", kMaxName));
        put(TokenKind::name, std::string(source_.substr(here, at_ - here)), here);
      } else read_sign(brackets);
    }
  }

  void read_sign(std::string& brackets) {
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="}, kOne = "+-*/%~[](){}<>=.:|,",
                               kOpen = "([{";
    const auto two = std::find(std::begin(kTwo), std::end(kTwo), source_.substr(at_, 2));
    const size_t begin = at_;
    const std::string sign(source_.substr(at_, two != std::end(kTwo) ? 2 : 1));
    if (sign.size() == 1 && kOne.find(sign) == kOne.npos) wrong(at_, fmt::format("unexpected character '{}'", sign));
    if (const size_t open = kOpen.find(sign); open != kOpen.npos) brackets += ")]}"[open];
    else if (sign == ")" || sign == "]" || sign == "}") {
      if (brackets.empty() || brackets.back() != sign[0]) wrong(at_, fmt::format("unexpected '{}'", sign));
      brackets.pop_back();
    }
    at_ += sign.size();
    put(TokenKind::sign, sign, begin);
  }

  void read_number() {
    const size_t begin = at_;
    std::string digits;
    const auto read = [&](auto is) {
      for (; is(peek()) || (peek() == '_' && is(peek(1))); ++at_)
        if (peek() != '_') digits += peek();
    };
    const char marker = char(peek(1) | 0x20);
    const int base = peek() != '0' ? 10 : marker == 'x' ? 16 : marker == 'o' ? 8 : marker == 'b' ? 2 : 10;
    if (base != 10) at_ += 2;
    read([&](char c) {
      return base == 16 ? is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') : c >= '0' && c < '0' + base;
    });
    bool real = false;
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';  // x.0.1 reads two elements
    if (base == 10 && !after_dot && peek() == '.' && is_digit(peek(1)))
      real = true, digits += '.', ++at_, read(is_digit);
    const size_t signs = peek(1) == '+' || peek(1) == '-' ? 2 : 1;
    if (base == 10 && !after_dot && (peek() | 0x20) == 'e' && is_digit(peek(signs))) {
      digits += source_.substr(at_, signs);
      real = true, at_ += signs, read(is_digit);
    }
    if (!real && base != 10) {
      int64_t n = 0;
      const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n, base);
      if (error != std::errc() || digits.empty()) wrong(begin, "bad number");
      digits = fmt::format("{}", n);
    }
    put(real ? TokenKind::real : TokenKind::integer, digits, begin);
  }

  std::string read_string() {
    const size_t begin = at_;
    const char quote = source_[at_++];
    std::string out;
    for (;;) {
      if (at_ >= source_.size()) wrong(begin, "a string has no end");
      const char c = source_[at_++];
      if (c == quote) return out;
      if (c != '\\') out += c;
      else read_escape(out, begin);
    }
  }

  /// An escape sequence of Python's strings; other backslashes stay.
  void read_escape(std::string& out, size_t begin) {
    constexpr std::string_view kLetters = "\\'\"abfnrtv", kCodes = "\\'\"\a\b\f\n\r\t\v";
    if (at_ >= source_.size()) wrong(begin, "a string has no end");
    const char c = source_[at_++];
    if (const size_t simple = kLetters.find(c); simple != kLetters.npos) return void(out += kCodes[simple]);
    if (c == '\n') return;
    const bool octal = c >= '0' && c <= '7';
    const size_t digits = octal ? 3 : c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == 'N') wrong(begin, "\\N{...} is not supported in strings");
    if (digits == 0) return void((out += '\\') += c);
    if (octal) --at_;
    uint32_t code = 0;
    const char* const first = source_.data() + at_;
    const auto [stop, error] =
        std::from_chars(first, first + std::min(digits, source_.size() - at_), code, octal ? 8 : 16);
    if (error != std::errc() || (!octal && stop != first + digits) || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000))
      wrong(begin, fmt::format("bad escape sequence '\\{}' in a string", c));
    at_ += size_t(stop - first);
    out += utf8(code);
  }

  std::string_view source_;
  size_t at_ = 0, counted_ = 0, line_start_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  if (source.size() > kMaxSource) trouble("the template has more than {} bytes", kMaxSource);
  return Lexer(with_line_feeds(source)).run();
}

}  // namespace ridge::text::jinja
