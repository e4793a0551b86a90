#include "grammar/gbnf.h"

#include <algorithm>
#include <optional>

#include "base/utf8.h"
#include "base/work_limit.h"

namespace ridge::grammar {
namespace {

constexpr int kMaxGroups = 128;  // groups in groups

/// Methods return nothing after a failure; the first reason stays.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Grammar> parse() {
    for (skip(true); !failed() && at_ < text_.size(); skip(true)) read_rule();
    for (const auto& [name, rule] : rules_)
      if (!rule.defined) refuse(rule.first_use, fmt::format("no rule is named {}", name));
    if (!failed() && !rules_.contains("root")) refuse(text_.size(), "there is no rule named root");
    if (failed()) return fail(ErrorKind::usage, "grammar: {}", reason_);
    return std::move(builder_).finish(builder_.rule(rules_.find("root")->second.number));
  }

 private:
  struct Rule {
    uint32_t number = 0;
    size_t first_use = 0;
    bool defined = false;
  };

  bool failed() const { return !reason_.empty(); }
  Expr refuse(size_t at, std::string_view why) {
    if (failed()) return builder_.empty();
    const std::string_view before = text_.substr(0, at);
    const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    reason_ = fmt::format("line {}, column {}: {}", 1 + std::count(before.begin(), before.end(), '\n'),
                          1 + at - line_start, why);
    return builder_.empty();
  }
  Expr refuse(std::string_view why) { return refuse(at_, why); }

  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool take(std::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }
  /// Skips blanks and comments, and ends of lines if they mean nothing here.
  void skip(bool lines) {
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '#') at_ = std::min(text_.find('\n', at_), text_.size());
      const bool is_blank = peek() == ' ' || peek() == '\t' || (lines && (peek() == '\n' || peek() == '\r'));
      if (!is_blank || at_ == text_.size()) return;
    }
  }

  static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  }
  std::string read_name() {
    const size_t start = at_;
    while (is_name(peek())) ++at_;
    return std::string(text_.substr(start, at_ - start));
  }
  Rule& rule_of(const std::string& name, size_t at) {
    const auto [place, is_new] = rules_.try_emplace(name);
    if (is_new) place->second = {builder_.new_rule(name), at};
    return place->second;
  }

  void read_rule() {
    const size_t start = at_;
    const std::string name = read_name();
    if (name.empty()) return void(refuse("a rule's name is expected"));
    skip(false);
    if (!take("::=")) return void(refuse("::= is expected after a rule's name"));
    Rule& rule = rule_of(name, start);
    if (rule.defined) return void(refuse(start, fmt::format("a second rule is named {}", name)));
    rule.defined = true;
    const uint32_t number = rule.number;
    builder_.define(number, read_choice(0));
    if (failed() || at_ == text_.size() || peek() == '\n' || peek() == '\r') return;
    refuse(peek() == ')' ? "this ) closes nothing" : "this character means nothing here");
  }

  /// In a group the text goes on over ends of lines; outside up to the line that begins the next rule.
  Expr read_choice(int depth) {
    std::vector<Expr> options{read_sequence(depth)};
    while (!failed() && take("|")) options.push_back(read_sequence(depth));
    return builder_.choice(std::move(options));
  }

  Expr read_sequence(int depth) {
    std::vector<Expr> parts;
    for (skip_to_part(depth); !failed() && begins_part(); skip_to_part(depth)) {
      Expr part = read_part(depth);
      for (skip(false); !failed() && (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{'); skip(false))
        part = read_repeat(part);
      parts.push_back(part);
      if (builder_.full()) refuse(fmt::format("the grammar is larger than {} nodes or {} rules", kMaxNodes, kMaxRules));
    }
    return builder_.sequence(std::move(parts));
  }

  void skip_to_part(int depth) {
    skip(depth > 0);
    const size_t line_end = at_;
    skip(true);
    if (depth > 0 || at_ == line_end) return;
    const size_t start = at_;
    const bool is_rule = !read_name().empty() && (skip(false), take("::="));
    at_ = is_rule || start == text_.size() ? line_end : start;
  }

  bool begins_part() const {
    const char c = peek();
    return c == '"' || c == '[' || c == '(' || c == '.' || is_name(c);
  }

  Expr read_part(int depth) {
    WorkLimit::check();
    const size_t start = at_;
    if (take("\"")) return read_text(start);
    if (take("[")) return read_class(start);
    if (take(".")) return builder_.chars(CharSet::all());
    if (!take("(")) return builder_.rule(rule_of(read_name(), start).number);
    if (depth >= kMaxGroups) return refuse(start, fmt::format("groups nest deeper than {}", kMaxGroups));
    const Expr group = read_choice(depth + 1);
    if (!failed() && !take(")")) return refuse(at_ == text_.size() ? start : at_, "this group has no )");
    return group;
  }

  Expr read_text(size_t start) {
    std::string spelled;
    while (!take("\"")) {
      const auto code = read_char(start, "this text has no closing quote");
      if (!code) return builder_.empty();
      spelled += utf8(*code);
    }
    return builder_.literal(spelled);
  }

  Expr read_class(size_t start) {
    const bool inverted = take("^");
    std::vector<CharRange> ranges;
    while (!take("]")) {
      WorkLimit::check();
      const size_t range_start = at_;
      const auto first = read_char(start, "this set of characters has no ]");
      if (!first) return builder_.empty();
      auto last = first;
      if (peek() == '-' && peek(1) != ']') {
        ++at_;
        last = read_char(start, "this set of characters has no ]");
        if (!last) return builder_.empty();
      }
      if (*first > *last) return refuse(range_start, "this range is the wrong way round");
      ranges.push_back({*first, *last});
    }
    const CharSet set(std::move(ranges));
    return builder_.chars(inverted ? set.inverted() : set);
  }

  std::optional<uint32_t> read_char(size_t start, std::string_view unclosed) {
    const auto give_up = [&](size_t at, std::string_view why) {
      refuse(at, why);
      return std::nullopt;
    };
    const char c = peek();
    if (at_ == text_.size() || c == '\n' || c == '\r') return give_up(start, unclosed);
    if (c != '\\') {
      const auto lead = uint8_t(c);
      const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
      const auto codes = code_points(text_.substr(at_, length));
      if (!codes) return give_up(at_, "this is not UTF-8");
      at_ += length;
      return codes->front();
    }
    const size_t escape = at_;
    const char kind = peek(1);
    at_ += 2;
    const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits > 0) {
      uint32_t code = 0;
      for (size_t i = 0; i < digits; ++i, ++at_) {
        const auto digit = hex_digit(peek());
        if (!digit || code > 0xFFFFFFF)
          return give_up(escape, fmt::format("\\{} takes {} hexadecimal digits", kind, digits));
        code = code << 4 | *digit;
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return give_up(escape, "this is no character of Unicode");
      return code;
    }
    if (kind == 'n') return '\n';
    if (kind == 'r') return '\r';
    if (kind == 't') return '\t';
    if (kind != '\0' && std::string_view("\\\"[]-^/").find(kind) != std::string_view::npos) return uint8_t(kind);
    return give_up(escape,
                   "unknown escape (known: \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\/ \\xHH \\uHHHH \\UHHHHHHHH)");
  }

  Expr read_repeat(Expr part) {
    if (take("*")) return builder_.repeat(part, 0, kUnbounded);
    if (take("+")) return builder_.repeat(part, 1, kUnbounded);
    if (take("?")) return builder_.optional(part);
    const size_t start = at_++;
    skip(false);
    const auto min = read_number();
    skip(false);
    auto max = min;
    const bool has_comma = take(",");
    if (has_comma) {
      skip(false);
      max = read_number();
      skip(false);
    }
    if (!take("}") || (!min && !max))
      return refuse(start, "a repetition is {m}, {m,}, {m,n} or {,n}, with numbers under 10^9");
    if (max && min.value_or(0) > *max) return refuse(start, "this repetition has a minimum over its maximum");
    return builder_.repeat(part, min.value_or(0), max.value_or(kUnbounded));
  }

  std::optional<uint32_t> read_number() {
    uint32_t number = 0;
    const size_t start = at_;
    for (; peek() >= '0' && peek() <= '9' && at_ - start < 9; ++at_) number = number * 10 + uint32_t(peek() - '0');
    if (at_ == start) return std::nullopt;
    return number;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string reason_;
  Builder builder_;
  std::map<std::string, Rule> rules_;
};

}  // namespace

Result<Grammar> parse_gbnf(std::string_view text) {
  if (text.size() > kMaxGrammarText)
    return fail(ErrorKind::usage, "grammar: {} bytes (the limit is {})", text.size(), kMaxGrammarText);
  return Parser(text).parse();
}

}  // namespace ridge::grammar
