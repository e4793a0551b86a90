// GBNF: what is accepted, what a grammar then accepts, and where a fault is said to be.
#include "grammar/gbnf.h"

#include "base/utf8.h"
#include "helpers.h"

namespace ridge::grammar {
namespace {

struct Case {
  const char* gbnf;
  std::vector<std::string> good, bad;
};

TEST(Gbnf, AcceptsAndRejects) {
  const Case cases[] = {
      {"root ::= \"yes\" | \"no\"", {"yes", "no"}, {"", "y", "yesno", "YES"}},
      {"root ::=\n  \"a\" |\n  \"b\" # a comment\n\n# another\n", {"a", "b"}, {"ab"}},
      {"root ::= x y\nx ::= \"a\"+\ny ::= (\"b\" | \"c\")? \"d\"*", {"a", "aab", "acdd", "add"}, {"", "b", "abc"}},
      {"root ::= [a-cx-]{2} [^a-y\\]]", {"axz", "--!", "c-\n"}, {"ax", "dxz", "axb", "ax]"}},
      {"root ::= \"a\"{2,3} \"b\"{2,} \"c\"{,2} \"d\"{0}", {"aabb", "aaabbbbcc"}, {"abb", "aabbccc", "aabbd"}},
      {"root ::= \"\\x41\\u00e9\\U0001F600\\n\\t\\\\\\\"\"", {"Aé😀\n\t\\\""}, {"A"}},
      {"root ::= [α-ω]+ .", {"αβγ", "ωω!", "ω😀"}, {"a", "ω\xCF"}},
      {"root ::= [\\[\\]\\^\\-]+", {"[]^-"}, {"\\"}},
      {"root ::= (\n\"a\"\n\"b\"\n)", {"ab"}, {"a"}},
      {"root ::= \"(\" root \")\" |", {"", "()", "((()))"}, {"(", "())"}},
      {"root ::= ws \"a\"\nws ::= ([ \\t\\n] ws)?", {"a", " \n\t a"}, {" "}},
      {"root ::= \"\" | \"a\"*", {"", "aaa"}, {"b"}},
      {"my-rule_1 ::= \"z\"\r\nroot ::= my-rule_1\r\n", {"z"}, {""}}};
  for (const Case& one : cases) {
    const auto grammar = parse_gbnf(one.gbnf);
    ASSERT_TRUE(grammar) << one.gbnf << ": " << grammar.error().message;
    for (const std::string& text : one.good) EXPECT_TRUE(accepts(*grammar, text)) << one.gbnf << ": " << text;
    for (const std::string& text : one.bad) EXPECT_FALSE(accepts(*grammar, text)) << one.gbnf << ": " << text;
  }
}

TEST(Gbnf, FaultsHaveLineAndColumn) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no rule named root"},
      {"x ::= \"a\"", "no rule named root"},
      {"root ::= y", "line 1, column 10: no rule is named y"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: a second rule is named root"},
      {"root ::= \"a", "line 1, column 10: this text has no closing quote"},
      {"root ::= [ab\n", "line 1, column 10: this set of characters has no ]"},
      {"root ::= (\"a\"", "line 1, column 10: this group has no )"},
      {"root ::= \"a\")", "line 1, column 13: this ) closes nothing"},
      {"root ::= \"a\"\n  ! \"b\"", "line 2, column 3"},
      {"root = \"a\"", "line 1, column 6: ::= is expected"},
      {"root ::= [b-a]", "line 1, column 11: this range is the wrong way round"},
      {"root ::= \"\\q\"", "line 1, column 11: unknown escape"},
      {"root ::= \"\\x4\"", "\\x takes 2 hexadecimal digits"},
      {"root ::= \"\\uD800\"", "no character of Unicode"},
      {"root ::= \"a\"{3,2}", "minimum over its maximum"},
      {"root ::= \"a\"{,}", "line 1, column 13: a repetition is"},
      {"root ::= \"a\"{1,9999999999}", "under 10^9"},
      {"root ::= \"\xFF\"", "line 1, column 11: this is not UTF-8"},
      {"root ::= *", "line 1, column 10"}};
  for (const auto& [gbnf, reason] : cases) {
    const auto grammar = parse_gbnf(gbnf);
    ASSERT_FALSE(grammar) << gbnf;
    EXPECT_NE(grammar.error().message.find(reason), std::string::npos) << gbnf << ": " << grammar.error().message;
  }
}

TEST(Gbnf, HostileTextsEndInAReason) {
  std::string deep = "root ::= ", many = "root ::= \"a\"\n", large(kMaxGrammarText + 1, ' ');
  for (int i = 0; i < 100000; ++i) deep += '(';
  for (int i = 0; i < 60000; ++i) many += fmt::format("r{} ::= \"b\"\n", i);
  for (const std::string& text : {deep, many, large}) {
    const auto grammar = parse_gbnf(text);
    ASSERT_FALSE(grammar);
    EXPECT_LT(grammar.error().message.size(), 200u);
  }
}

TEST(Gbnf, SetsOfManyCharactersInAnyOrder) {
  // Every second character, from the last to the first: ranges that nothing joins.
  std::string set = "root ::= [";
  for (uint32_t code = 0x55FE; code >= 0x4E00; code -= 2) set += utf8(code);
  const auto grammar = parse_gbnf(set + "]");
  ASSERT_TRUE(grammar) << grammar.error().message;
  EXPECT_TRUE(accepts(*grammar, utf8(0x4E00)));
  EXPECT_FALSE(accepts(*grammar, utf8(0x4E01)));
  const CharSet joined(std::vector<CharRange>{{'x', 'z'}, {'a', 'c'}, {'d', 'e'}, {'b', 'b'}});
  ASSERT_EQ(joined.ranges().size(), 2u);
  EXPECT_EQ(joined.ranges()[0].last, uint32_t('e'));
}

TEST(Builder, WordsThatBeginWithOneAnotherNestNoDeeper) {
  std::vector<std::string> words;
  std::string word;
  for (int i = 0; i < 300; ++i) words.push_back(word += 'a');
  words.push_back("ab");
  Builder builder;
  const Expr root = builder.words(words);
  const auto grammar = std::move(builder).finish(root);
  ASSERT_TRUE(grammar) << grammar.error().message;
  for (const size_t n : {1, 2, 63, 64, 65, 66, 200, 300}) EXPECT_TRUE(accepts(*grammar, std::string(n, 'a'))) << n;
  EXPECT_TRUE(accepts(*grammar, "ab"));
  EXPECT_FALSE(accepts(*grammar, std::string(301, 'a')));
  EXPECT_FALSE(accepts(*grammar, "aab"));
}

}  // namespace
}  // namespace ridge::grammar
