// The automaton against trying everything, on small grammars.
#include "grammar/matcher.h"

#include "helpers.h"

namespace ridge::grammar {
namespace {

ByteSet set_of(std::string_view bytes) {
  ByteSet set;
  for (const char c : bytes) set.set(uint8_t(c));
  return set;
}

/// A random expression over a, b and c; rules only point to later ones, or behind a byte to any.
Expr random_expr(Builder& b, Rng& rng, const std::vector<uint32_t>& rules, size_t rule, int depth) {
  const auto part = [&] { return random_expr(b, rng, rules, rule, depth - 1); };
  switch (depth == 0 ? pick(rng, 2) : pick(rng, 8)) {
    case 0: return b.bytes(set_of(pick(rng, 2) ? "ab" : "c"));
    case 1: return b.literal(std::string_view("abcab").substr(pick(rng, 3), pick(rng, 3)));
    case 2: return b.sequence({part(), part()});
    case 3: return b.choice({part(), part()});
    case 4: return b.repeat(part(), uint32_t(pick(rng, 3)), pick(rng, 2) ? kUnbounded : uint32_t(2 + pick(rng, 3)));
    case 5: return b.optional(part());
    case 6:
      return rule + 1 < rules.size() ? b.rule(rules[rule + 1 + pick(rng, rules.size() - rule - 1)]) : b.literal("b");
    default:
      return b.choice({b.sequence({b.literal("a"), b.rule(rules[pick(rng, rules.size())]), part()}), b.literal("b")});
  }
}

std::vector<std::string> all_texts(size_t length) {
  std::vector<std::string> texts{""};
  for (size_t first = 0, n = 0; n < length; ++n) {
    const size_t end = texts.size();
    for (; first < end; ++first)
      for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[first] + c);
  }
  return texts;
}

/// Compares on all texts up to 6 bytes; the number of those accepted.
size_t compare_with_trying(const Grammar& grammar) {
  size_t n_accepted = 0;
  Matcher matcher(grammar);
  std::map<std::string, Matcher::State> states{{"", matcher.start()}};
  for (const std::string& text : all_texts(6)) {
    if (!text.empty()) states[text] = matcher.after(states[text.substr(0, text.size() - 1)], uint8_t(text.back()));
    const bool accepted = ends_of(grammar, grammar.root, text, 0).contains(text.size());
    EXPECT_EQ(matcher.can_end(states[text]), accepted) << text;
    n_accepted += accepted;
  }
  for (const std::string& text : all_texts(3)) {
    // Alive means that some text leads to the end, in as many bytes as shortest() says.
    Matcher::State state = states[text];
    std::string whole = text;
    while (state != Matcher::kDead && matcher.shortest(state) > 0) {
      const Matcher::State before = state;
      for (const char c : {'a', 'b', 'c'}) {
        const Matcher::State next = matcher.after(before, uint8_t(c));
        if (state != before || next == Matcher::kDead || matcher.shortest(next) + 1 != matcher.shortest(before))
          continue;
        state = next;
        whole += c;
      }
      EXPECT_NE(state, before) << whole;
      if (state == before) return n_accepted;
    }
    const bool is_dead = state == Matcher::kDead;
    EXPECT_TRUE(is_dead || ends_of(grammar, grammar.root, whole, 0).contains(whole.size())) << whole;
  }
  return n_accepted;
}

TEST(Matcher, AgreesWithTryingEverything) {
  Rng rng(20250101);
  int used = 0, ambiguous = 0;
  size_t n_accepted = 0;
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE(round);
    Builder builder;
    std::vector<uint32_t> rules;
    for (int i = 0; i < 3; ++i) rules.push_back(builder.new_rule(fmt::format("r{}", i)));
    for (size_t i = 0; i < rules.size(); ++i) builder.define(rules[i], random_expr(builder, rng, rules, i, 3));
    const auto grammar =
        std::move(builder).finish(round % 2 == 0 ? builder.rule(rules[0]) : random_expr(builder, rng, rules, 0, 2));
    if (!grammar) continue;
    try {
      n_accepted += compare_with_trying(*grammar);
      ++used;
    } catch (const Error&) {
      ++ambiguous;
    }
  }
  EXPECT_GT(used, 600);
  EXPECT_LT(ambiguous, 10);
  EXPECT_GT(n_accepted, 10000u);
}

TEST(Matcher, CountsWithoutCopies) {
  Builder b;
  const auto grammar = std::move(b).finish(b.repeat(b.bytes(set_of("ab")), 99998, 100000));
  ASSERT_TRUE(grammar) << grammar.error().message;
  EXPECT_LT(grammar->nodes.size(), 10u);
  Matcher matcher(*grammar);
  Matcher::State state = matcher.start();
  for (int i = 0; i < 100001; ++i) {
    EXPECT_EQ(matcher.can_end(state), i >= 99998);
    EXPECT_EQ(matcher.must_end(state), i == 100000);
    state = matcher.after(state, 'a');
  }
  EXPECT_EQ(state, Matcher::kDead);
}

TEST(Matcher, TextThatReturnsToAStateMakesNoNewOne) {
  const auto grammar = parse_gbnf("root ::= item (\",\" item)*\nitem ::= [a-z]* \";\" | \"(\" root \")\"");
  ASSERT_TRUE(grammar);
  Matcher matcher(*grammar);
  Matcher::State state = matcher.start();
  const auto read = [&](std::string_view text) {
    for (const char c : text) state = matcher.after(state, uint8_t(c));
  };
  read("ab;,xyz;,(a;)");
  const size_t size = matcher.size();
  const Matcher::State here = state;
  for (int i = 0; i < 100; ++i) read(",cd;,(e;)");
  EXPECT_EQ(state, here);
  EXPECT_LT(matcher.size(), size + 4096);
}

TEST(Matcher, NestingStopsWhereItCouldNotBeEnded) {
  const auto grammar = parse_gbnf("root ::= \"(\" root \")\" | \"x\"");
  ASSERT_TRUE(grammar);
  Matcher matcher(*grammar);
  Matcher::State state = matcher.start();
  size_t depth = 0;
  for (Matcher::State next = state; (next = matcher.after(state, '(')) != Matcher::kDead; ++depth) state = next;
  EXPECT_GT(depth, 200u);
  EXPECT_LT(depth, kMaxStack);
  EXPECT_EQ(matcher.shortest(state), depth + 1);
  state = matcher.after(state, 'x');
  for (size_t i = 0; i < depth; ++i) state = matcher.after(state, ')');
  EXPECT_TRUE(matcher.must_end(state));
}

TEST(Matcher, TooManyWaysAtOnceAreAnError) {
  const auto grammar = parse_gbnf("root ::= ((\"a\"{0,200}){0,60} \"b\"){0,60} (\"a\"{0,200} \"c\"){0,60} \"d\"");
  ASSERT_TRUE(grammar) << grammar.error().message;
  Matcher matcher(*grammar);
  Matcher::State state = matcher.start();
  std::string reason;
  try {
    for (int i = 0; i < 1000; ++i) state = matcher.after(state, 'a');
  } catch (const TooAmbiguous& error) {
    reason = error.what();
  }
  EXPECT_NE(reason.find("too ambiguous"), std::string::npos) << reason;
  // The matcher is still good for other texts.
  EXPECT_NE(matcher.after(matcher.start(), 'd'), Matcher::kDead);
}

TEST(Matcher, ACopyInAnotherMatcherGoesOnTheSame) {
  const auto grammar = parse_gbnf("root ::= \"(\" root \")\" | [a-c]{2,5}");
  ASSERT_TRUE(grammar);
  Matcher one(*grammar), other(*grammar);
  Matcher::State state = one.start();
  for (const char c : std::string_view("(((ab")) state = one.after(state, uint8_t(c));
  Matcher::State copy = one.copy(state, other);
  for (const char c : std::string_view("ca)))")) {
    EXPECT_EQ(one.shortest(state), other.shortest(copy));
    state = one.after(state, uint8_t(c));
    copy = other.after(copy, uint8_t(c));
  }
  EXPECT_TRUE(one.must_end(state));
  EXPECT_TRUE(other.must_end(copy));
}

TEST(Builder, RefusesWhatCannotBeWalked) {
  const auto reason = [](std::string_view gbnf) {
    const auto grammar = parse_gbnf(gbnf);
    return grammar ? std::string("accepted") : grammar.error().message;
  };
  EXPECT_NE(reason("root ::= root \"a\" | \"b\"").find("left recursion"), std::string::npos);
  EXPECT_NE(reason("root ::= \"\" x\nx ::= \"c\"? root").find("left recursion"), std::string::npos);
  EXPECT_NE(reason("root ::= \"a\" root").find("no text matches"), std::string::npos);
  EXPECT_NE(reason("root ::= (\"a\"?){100}").find("may be empty"), std::string::npos);
  EXPECT_NE(reason("root ::= ((\"a\"{9999}){9999}){9999}").find("shorter"), std::string::npos);
  EXPECT_EQ(reason("root ::= (\"a\"?){60}"), "accepted");
  EXPECT_EQ(reason("root ::= (\"a\"*)*"), "accepted");
}

}  // namespace
}  // namespace ridge::grammar
