#include "grammar/pattern.h"

#include <algorithm>

namespace ridge::grammar {
namespace {

constexpr int kMaxPatternGroups = 64;
constexpr size_t kMaxPattern = 4096;

const CharSet kDigits{{'0', '9'}};
const CharSet kWord{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharSet kSpaces{{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                      {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharSet kLineEnds{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class PatternParser {
 public:
  PatternParser(std::vector<uint32_t> codes, Builder& builder, JsonText& json)
      : codes_(std::move(codes)), builder_(builder), json_(json) {}

  Result<Expr> parse() {
    const Expr anything = builder_.repeat(json_.spelled(CharSet::all()), 0, kUnbounded);
    std::vector<Expr> options;
    do {
      std::vector<Expr> parts;
      if (!take('^')) parts.push_back(anything);
      parts.push_back(read_sequence(0));
      if (!take('$')) parts.push_back(anything);
      options.push_back(builder_.sequence(std::move(parts)));
    } while (reason_.empty() && take('|'));
    if (at_ < codes_.size()) refuse("this character stands where it means nothing here, ^ and $ only at the ends");
    if (!reason_.empty()) return fail(ErrorKind::usage, "{}", reason_);
    return builder_.choice(std::move(options));
  }

 private:
  Expr refuse(std::string_view why) {
    if (reason_.empty()) reason_ = fmt::format("character {} of the pattern: {}", at_ + 1, why);
    at_ = codes_.size();
    return builder_.empty();
  }
  uint32_t peek() const { return at_ < codes_.size() ? codes_[at_] : 0; }
  bool is_at(char c) const { return at_ < codes_.size() && codes_[at_] == uint8_t(c); }
  bool take(char c) { return is_at(c) && ++at_ > 0; }

  Expr read_choice(int depth) {
    std::vector<Expr> options{read_sequence(depth)};
    while (take('|')) options.push_back(read_sequence(depth));
    return builder_.choice(std::move(options));
  }

  Expr read_sequence(int depth) {
    std::vector<Expr> parts;
    while (at_ < codes_.size() && !is_at('|') && !is_at(')') && !is_at('^') && !is_at('$'))
      parts.push_back(read_repeats(read_part(depth)));
    return builder_.sequence(std::move(parts));
  }

  Expr read_part(int depth) {
    if (take('(')) return read_group(depth);
    if (take('.')) return json_.spelled(kLineEnds.inverted());
    if (take('[')) return read_class();
    if (take('\\')) return json_.spelled(read_escape(false));
    if (is_at('*') || is_at('+') || is_at('?') || is_at('{') || is_at('}') || is_at(']'))
      return refuse("this character needs a \\ before it");
    const uint32_t code = codes_[at_++];
    return json_.spelled({{code, code}});
  }

  Expr read_group(int depth) {
    if (depth >= kMaxPatternGroups) return refuse(fmt::format("groups nest deeper than {}", kMaxPatternGroups));
    if (take('?') && !take(':')) return refuse("look-around and named groups are not supported");
    const Expr group = read_choice(depth + 1);
    if (!take(')')) return refuse("a group has no ), or ^ or $ inside");
    return group;
  }

  Expr read_repeats(Expr part) {
    uint32_t min = 0, max = kUnbounded;
    if (take('+')) min = 1;
    else if (take('?')) max = 1;
    else if (take('{')) {
      const auto first = read_number();
      if (!first) return refuse("a repetition is {m}, {m,} or {m,n}, with numbers under 10^9");
      min = max = *first;
      if (take(',')) max = is_at('}') ? kUnbounded : read_number().value_or(0);
      if (!take('}') || max < min) return refuse("a repetition is {m}, {m,} or {m,n}, with m not over n");
    } else if (!take('*')) {
      return part;
    }
    take('?');  // lazy: the same texts
    if (is_at('*') || is_at('+') || is_at('?') || is_at('{'))
      return refuse("a repetition of a repetition needs a group");
    return max == 1 && min == 0 ? builder_.optional(part) : builder_.repeat(part, min, max);
  }

  std::optional<uint32_t> read_number() {
    uint32_t number = 0;
    const size_t start = at_;
    for (; kDigits.contains(peek()) && at_ - start < 9; ++at_) number = number * 10 + peek() - '0';
    return at_ > start ? std::optional(number) : std::nullopt;
  }

  /// After the backslash.
  CharSet read_escape(bool in_class) {
    const uint32_t kind = peek();
    if (at_ == codes_.size()) return refuse("the pattern ends in a \\"), CharSet();
    ++at_;
    constexpr std::string_view kLetters = "tnrfv", kCodes = "\t\n\r\f\v";
    const size_t known = kind < 0x80 ? kLetters.find(char(kind)) : kLetters.npos;
    if (known != kLetters.npos) return {{uint8_t(kCodes[known]), uint8_t(kCodes[known])}};
    switch (kind) {
      case 'd': return kDigits;
      case 'D': return kDigits.inverted();
      case 'w': return kWord;
      case 'W': return kWord.inverted();
      case 's': return kSpaces;
      case 'S': return kSpaces.inverted();
      default: break;
    }
    if (kind == 'x' || kind == 'u') {
      uint32_t code = 0;
      for (int i = 0; i < (kind == 'x' ? 2 : 4); ++i, ++at_) {
        const auto digit = peek() < 0x80 ? hex_digit(char(peek())) : std::nullopt;
        if (!digit) return refuse("\\x takes two hexadecimal digits, \\u four"), CharSet();
        code = code << 4 | *digit;
      }
      if (code >= 0xD800 && code <= 0xDFFF)
        return refuse("surrogates are not supported (write the character)"), CharSet();
      return {{code, code}};
    }
    if (kWord.contains(kind) && !(in_class && kind == '-')) {
      --at_;
      return refuse("this escape is not supported (references, \\b, \\p, \\c and unknown letters are not)"), CharSet();
    }
    return {{kind, kind}};
  }

  Expr read_class() {
    const bool inverted = take('^');
    CharSet set;
    while (!take(']')) {
      if (at_ == codes_.size()) return refuse("a set of characters has no ]");
      const CharSet first = read_member();
      const bool is_range = is_at('-') && at_ + 1 < codes_.size() && codes_[at_ + 1] != ']';
      if (!is_range) {
        set.add(first);
        continue;
      }
      ++at_;
      const CharSet last = read_member();
      const auto single = [](const CharSet& one) {
        return one.ranges().size() == 1 && one.ranges()[0].first == one.ranges()[0].last;
      };
      if (!single(first) || !single(last) || first.ranges()[0].first > last.ranges()[0].first)
        return refuse("a range in a set of characters is the wrong way round, or its ends are no characters");
      set.add({first.ranges()[0].first, last.ranges()[0].first});
    }
    return json_.spelled(inverted ? set.inverted() : set);
  }

  CharSet read_member() {
    if (at_ == codes_.size()) return {};
    if (take('\\')) return take('b') ? CharSet{{8, 8}} : read_escape(true);
    const uint32_t code = codes_[at_++];
    return {{code, code}};
  }

  std::vector<uint32_t> codes_;
  size_t at_ = 0;
  std::string reason_;
  Builder& builder_;
  JsonText& json_;
};

}  // namespace

Result<Expr> pattern_contents(std::string_view pattern, Builder& builder, JsonText& json) {
  auto codes = code_points(pattern);
  if (!codes) return fail(ErrorKind::usage, "the pattern is not UTF-8");
  if (codes->size() > kMaxPattern)
    return fail(ErrorKind::usage, "the pattern is longer than {} characters", kMaxPattern);
  return PatternParser(std::move(*codes), builder, json).parse();
}

}  // namespace ridge::grammar
