#include "grammar/json_text.h"

#include <algorithm>

#include "base/utf8.h"

namespace ridge::grammar {
namespace {

constexpr uint32_t kPlacesOfOpenBounds = 6;

CharSet unescaped() { return CharSet{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}.inverted(); }

}  // namespace

JsonText::JsonText(Builder& builder) : builder_(builder) {
  Builder& b = builder;
  ByteSet blanks, escapes;
  for (const char c : {' ', '\t'}) blanks.set(uint8_t(c));
  for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}) escapes.set(uint8_t(c));
  const Expr lines = b.sequence({b.literal("\n"), b.repeat(b.bytes(blanks), 0, kMaxIndent)});
  blank_ = rule_of("blank", b.choice({b.empty(), b.literal(" "), lines}));
  space_ = b.optional(b.literal(" "));
  comma_ = b.sequence({b.literal(","), blank_});
  colon_ = b.sequence({b.literal(":"), space_});
  digit_ = range_of_bytes('0', '9');
  boolean_ = b.words({"true", "false"});

  ByteSet hex, low, not_d, of_d, high_surrogate, low_surrogate;
  for (const char c : std::string_view("0123456789abcdefABCDEF")) {
    const char lower = char(c | 0x20);
    hex.set(uint8_t(c));
    if (lower != 'd') not_d.set(uint8_t(c));
    else of_d.set(uint8_t(c));
    if (c >= '0' && c <= '7') low.set(uint8_t(c));
    else if (c <= '9' || lower < 'c') high_surrogate.set(uint8_t(c));
    else low_surrogate.set(uint8_t(c));
  }
  const Expr any_hex = b.bytes(hex), two = b.repeat(any_hex, 2, 2), d = b.bytes(of_d);
  // A lone surrogate is no text: most readers refuse it.
  const Expr unicode =
      b.choice({b.sequence({b.bytes(not_d), b.repeat(any_hex, 3, 3)}), b.sequence({d, b.bytes(low), two}),
                b.sequence({d, b.bytes(high_surrogate), two, b.literal("\\u"), d, b.bytes(low_surrogate), two})});
  plain_ = b.chars(unescaped());
  character_ = b.choice(
      {plain_, b.sequence({b.literal("\\"), b.choice({b.bytes(escapes), b.sequence({b.literal("u"), unicode})})})});
  any_string_ = string(0, kUnbounded);

  const uint32_t value = b.new_rule("value"), object = b.new_rule("object"), array = b.new_rule("array");
  any_ = b.rule(value);
  any_object_ = b.rule(object);
  any_array_ = b.rule(array);
  const auto list_of = [&](Expr item) {
    return b.sequence({item, b.repeat(b.sequence({comma_, item}), 0, kUnbounded)});
  };
  b.define(object, bracketed("{", list_of(member(any_string_, any_)), true, "}"));
  b.define(array, bracketed("[", list_of(any_), true, "]"));
  b.define(value, b.choice({any_object_, any_array_, any_string_, number({}), boolean_, b.literal("null")}));
}

Expr JsonText::rule_of(std::string name, Expr body) {
  const uint32_t rule = builder_.new_rule(std::move(name));
  builder_.define(rule, body);
  return builder_.rule(rule);
}

Expr JsonText::bracketed(std::string_view open, Expr contents, bool may_be_empty, std::string_view close) {
  const Expr end = builder_.literal(close);
  Expr rest = builder_.sequence({contents, blank_, end});
  if (may_be_empty) rest = builder_.choice({rest, end});
  return builder_.sequence({builder_.literal(open), blank_, rest});
}

Expr JsonText::string(uint32_t min, uint32_t max) {
  const auto [place, is_new] = strings_.try_emplace({min, max});
  if (is_new) place->second = string_of(builder_.repeat(character_, min, max));
  return place->second;
}

Expr JsonText::string_of(Expr contents) {
  return rule_of("string", builder_.sequence({builder_.literal("\""), contents, builder_.literal("\"")}));
}

Expr JsonText::spelled(const CharSet& set) {
  std::vector<Expr> options{builder_.chars(set.without(unescaped().inverted()))};
  for (uint32_t code = 0; code < 0x20; ++code) {
    if (!set.contains(code)) continue;
    constexpr std::string_view kCodes = "\b\f\n\r\t", kLetters = "bfnrt";
    const size_t known = kCodes.find(char(code));
    options.push_back(
        builder_.literal(known != kCodes.npos ? std::string("\\") + kLetters[known] : fmt::format("\\u{:04x}", code)));
  }
  for (const char c : {'"', '\\'})
    if (set.contains(uint8_t(c))) options.push_back(builder_.literal(std::string("\\") + c));
  return builder_.choice(std::move(options));
}

Expr JsonText::string_other_than(std::vector<std::vector<uint32_t>> names) {
  if (names.empty()) return any_string_;
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return string_of(others_of(names, 0));
}

/// Continuations that keep a string unlike all these sorted names, which share their first `skip` characters.
Expr JsonText::others_of(std::span<const std::vector<uint32_t>> names, size_t skip) {
  const Expr rest = builder_.repeat(plain_, 0, kUnbounded);
  if (names.empty()) return rest;
  std::vector<Expr> options;
  CharSet nexts;
  if (names.front().size() == skip) names = names.subspan(1);
  else options.push_back(builder_.empty());
  while (!names.empty()) {
    const uint32_t next = names.front()[skip];
    const auto end = std::find_if(names.begin(), names.end(), [&](const auto& name) { return name[skip] != next; });
    const auto same = size_t(end - names.begin());
    nexts.add({next, next});
    // A name with characters that must be escaped cannot be spelled here at all.
    if (unescaped().contains(next))
      options.push_back(builder_.sequence({builder_.literal(utf8(next)), others_of(names.first(same), skip + 1)}));
    names = names.subspan(same);
  }
  options.push_back(builder_.sequence({builder_.chars(unescaped().without(nexts)), rest}));
  return builder_.choice(std::move(options));
}

Expr JsonText::range_of_bytes(char first, char last) {
  ByteSet set;
  for (int c = first; c <= last; ++c) set.set(uint8_t(c));
  return builder_.bytes(set);
}

/// Numbers of as many digits as both bounds have, leading zeros included.
Expr JsonText::same_length(std::string_view min, std::string_view max) {
  const auto n = uint32_t(min.size());
  if (min == std::string(n, '0') && max == std::string(n, '9')) return digits(n, n);
  const auto join = [&](char digit, Expr rest) { return builder_.sequence({builder_.literal({&digit, 1}), rest}); };
  if (min[0] == max[0]) return join(min[0], same_length(min.substr(1), max.substr(1)));
  std::vector<Expr> options{join(min[0], same_length(min.substr(1), std::string(n - 1, '9'))),
                            join(max[0], same_length(std::string(n - 1, '0'), max.substr(1)))};
  if (min[0] + 1 < max[0])
    options.push_back(builder_.sequence({range_of_bytes(char(min[0] + 1), char(max[0] - 1)), digits(n - 1, n - 1)}));
  return builder_.choice(std::move(options));
}

Expr JsonText::whole(uint64_t min, uint64_t max) {
  if (min > max) return builder_.choice({});
  std::vector<Expr> options;
  for (uint64_t last = 9;; last = last * 10 + 9) {
    if (min <= last) {
      options.push_back(same_length(std::to_string(min), std::to_string(std::min(max, last))));
      min = last + 1;
    }
    if (max <= last) return builder_.choice(std::move(options));
  }
}

namespace {

/// The largest magnitude of as many digits as a number without bounds has, or as the other bound has.
uint64_t largest(uint64_t other) {
  uint64_t last = 9;
  for (uint32_t n = 1; n < kMaxDigits || last < other; ++n) last = last * 10 + 9;
  return last;
}

uint64_t magnitude_of(int64_t value) { return value < 0 ? uint64_t(-value) : uint64_t(value); }

}  // namespace

Expr JsonText::integer(const Bounds& bounds) {
  Builder& b = builder_;
  if (!bounds.min && !bounds.max) {
    const Expr plain = b.choice({b.literal("0"), b.sequence({range_of_bytes('1', '9'), digits(0, kMaxDigits - 1)})});
    return rule_of("integer", b.sequence({b.optional(b.literal("-")), plain}));
  }
  std::vector<Expr> options;
  if (!bounds.max || *bounds.max >= 0) {
    const uint64_t min = bounds.min && *bounds.min > 0 ? magnitude_of(*bounds.min) : 0;
    options.push_back(whole(min, bounds.max ? magnitude_of(*bounds.max) : largest(min)));
  }
  if (!bounds.min || *bounds.min < 0) {
    const uint64_t min = bounds.max && *bounds.max < 0 ? magnitude_of(*bounds.max) : 1;
    options.push_back(b.sequence({b.literal("-"), whole(min, bounds.min ? magnitude_of(*bounds.min) : largest(min))}));
  }
  return rule_of("integer", b.choice(std::move(options)));
}

/// Numbers without sign and exponent from min to max.
Expr JsonText::magnitude(uint64_t min, bool above_min, std::optional<uint64_t> max, bool below_max, uint32_t places) {
  Builder& b = builder_;
  const Expr point = b.literal("."), fraction = b.optional(b.sequence({point, digits(1, places)}));
  std::vector<Expr> options;
  const uint64_t first = above_min ? min + 1 : min;
  if (above_min && (!max || min < *max))
    for (uint32_t zeros = 0; zeros < places; ++zeros)
      options.push_back(b.sequence({b.literal(fmt::format("{}.{}", min, std::string(zeros, '0'))),
                                    range_of_bytes('1', '9'), digits(0, places - zeros - 1)}));
  if (!max) options.push_back(b.sequence({whole(first, largest(first)), fraction}));
  if (max && *max > first) options.push_back(b.sequence({whole(first, *max - 1), fraction}));
  if (max && !below_max && *max >= first)
    options.push_back(b.sequence(
        {b.literal(std::to_string(*max)), b.optional(b.sequence({point, b.repeat(b.literal("0"), 1, places)}))}));
  return b.choice(std::move(options));
}

Expr JsonText::number(const Bounds& bounds) {
  Builder& b = builder_;
  if (!bounds.min && !bounds.max) {
    ByteSet e, sign;
    for (const char c : {'e', 'E'}) e.set(uint8_t(c));
    for (const char c : {'+', '-'}) sign.set(uint8_t(c));
    const Expr fraction = b.optional(b.sequence({b.literal("."), digits(1, kMaxDigits)}));
    const Expr exponent = b.optional(b.sequence({b.bytes(e), b.optional(b.bytes(sign)), digits(1, 2)}));
    const Expr plain = b.choice({b.literal("0"), b.sequence({range_of_bytes('1', '9'), digits(0, kMaxDigits - 1)})});
    return rule_of("number", b.sequence({b.optional(b.literal("-")), plain, fraction, exponent}));
  }
  const uint32_t places = bounds.above_min || bounds.below_max ? kPlacesOfOpenBounds : kMaxDigits;
  std::vector<Expr> options;
  if (!bounds.max || *bounds.max >= 0) {
    const bool has_min = bounds.min && *bounds.min >= 0;
    std::optional<uint64_t> max;
    if (bounds.max) max = magnitude_of(*bounds.max);
    options.push_back(
        magnitude(has_min ? magnitude_of(*bounds.min) : 0, has_min && bounds.above_min, max, bounds.below_max, places));
  }
  if (!bounds.min || *bounds.min < 0) {
    const bool has_max = bounds.max && *bounds.max <= 0;
    std::optional<uint64_t> max;
    if (bounds.min) max = magnitude_of(*bounds.min);
    options.push_back(
        b.sequence({b.literal("-"), magnitude(has_max ? magnitude_of(*bounds.max) : 0, has_max && bounds.below_max, max,
                                              bounds.above_min, places)}));
  }
  return rule_of("number", b.choice(std::move(options)));
}

}  // namespace ridge::grammar
