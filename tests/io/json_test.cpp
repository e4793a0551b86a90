#include "io/json.h"

#include <gtest/gtest.h>

#include "cases/bytes.h"
#include "io/text.h"

namespace ridge::io {
namespace {

std::string nested(int depth) { return std::string(size_t(depth), '[') + std::string(size_t(depth), ']'); }

TEST(Json, BuildsTheSameDocumentAsTheLibrary) {
  for (const char* text : {"null", "true", "-1", "18446744073709551615", "-9223372036854775808", "0.5", "1e300", "\"\"",
                           "[]", "{}", R"({"a":[1,-2,3.5,{"b":null}],"c":{"d":{"e":[[],[[]],{}]}},"f":"g","":false})",
                           " [ 1 , 2 ] \n", R"(["\u00e9\ud83d\ude00\n\\","é😀"])", "\xEF\xBB\xBF{}"}) {
    const auto document = parse_json(text, "t");
    ASSERT_TRUE(document.has_value()) << document.error().message;
    EXPECT_EQ(*document, Json::parse(text)) << text;
  }
}

TEST(Json, BareInfinitiesBecomeNumbers) {
  EXPECT_EQ(with_finite_numbers(R"({"a":[0.0, Infinity],"b":-Infinity})"), R"({"a":[0.0, 1e308],"b":-1e308})");
  EXPECT_EQ(with_finite_numbers(R"({"Infinity":"to \"Infinity\" and","c":1})"),
            R"({"Infinity":"to \"Infinity\" and","c":1})");
  EXPECT_EQ(with_finite_numbers("Infini"), "Infini");
  EXPECT_EQ(with_finite_numbers("\"\\"), "\"\\");
}

TEST(Json, ManySiblingsKeepTheirPlaces) {
  std::string text = "{\"list\":[";
  for (int i = 0; i < 1000; ++i) text += "{\"n\":" + std::to_string(i) + "},";
  text += "0],\"after\":[1,[2]]}";
  EXPECT_EQ(parse_json(text, "t").or_throw(), Json::parse(text));
}

TEST(Json, NestsToTheLimitAndNoFurther) {
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth), "t").has_value());
  expect_refused(parse_json(nested(kMaxJsonDepth + 1), "t"), "bad JSON: t: nested deeper than 128 levels");
}

TEST(Json, DepthOfAHundredThousandEndsAtTheLimit) {
  expect_refused(parse_json(nested(100000), "t"), "nested deeper than 128 levels");
  expect_refused(parse_json(std::string(10'000'000, '['), "t"), "nested deeper than 128 levels");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  expect_refused(parse_json(objects, "t"), "nested deeper than 128 levels");
}

TEST(Json, ManyValuesEndAtTheLimit) {
  std::string text = "[0";
  for (int64_t i = 1; i < kMaxJsonValues; ++i) text += ",0";
  text += "]";
  expect_refused(parse_json(text, "t"), "more than 8388608 values");
}

struct BadText {
  const char* name;
  std::string text;
  const char* message;
};
void PrintTo(const BadText& bad, std::ostream* out) { *out << bad.name; }
class BadJsonTest : public testing::TestWithParam<BadText> {};

TEST_P(BadJsonTest, IsRefusedWithTheReason) {
  expect_refused(parse_json(GetParam().text, "f.json"), GetParam().message);
}

const BadText kBadTexts[] = {
    {"Empty", "", "bad JSON: f.json: "},
    {"Spaces", "  \n ", "f.json: "},
    {"Cut", "{\"a\":\n  [1,", "at line 2, column"},
    {"TwoDocuments", "{} {}", "at line 1, column 4"},
    {"KeyTwice", R"({"a":1,"b":{"a":2},"a":3})", "key 'a' appears twice in one object"},
    {"KeyTwiceEscaped", R"({"a":1,"\u0061":3})", "key 'a' appears twice"},
    {"KeyTwiceDeep", R"([{"x":{"k":[],"k":{}}}])", "key 'k' appears twice"},
    {"KeyNotAString", "{1:2}", "at line 1, column 2"},
    {"Comment", "{} // x", "at line 1, column"},
    {"TrailingComma", "[1,]", "at line 1, column 4"},
    {"NaN", "[NaN]", "at line 1, column"},
    {"NumberTooLarge", "[1e400]", "f.json: "},
    {"LeadingZero", "[01]", "at line 1, column"},
    {"BrokenUtf8", "[\"a\xFFz\"]", "ill-formed UTF-8"},
    {"SurrogateBytes", "[\"\xED\xA0\x80\"]", "ill-formed UTF-8"},
    {"LoneSurrogateEscape", R"(["\ud800"])", "surrogate"},
    {"RawControlCharacter", "[\"a\nb\"]", "at line 1, column"},
    {"NulAfterTheEnd", std::string("{}\0garbage", 10), "NUL byte at line 1, column 3"},
    {"NulInAString", std::string("[\"a\0b\"]", 7), "NUL byte at line 1, column 4"},
    {"LongToken", std::string(100000, 'x'), "at line 1, column"},
    {"ControlCharactersOutside", "\x1b[2J", "at line 1, column 1"},
};
INSTANTIATE_TEST_SUITE_P(All, BadJsonTest, testing::ValuesIn(kBadTexts),
                         [](const testing::TestParamInfo<BadText>& test) { return std::string(test.param.name); });

TEST(Text, Utf8IsWellFormedOrNot) {
  for (const char* good : {"", "a", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80",
                           "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF", "\xEE\x80\x80"})
    EXPECT_TRUE(valid_utf8(good)) << in_quotes(good);
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC2", "\xE2\x82", "a\xF0\x90\x80"})
    EXPECT_FALSE(valid_utf8(bad)) << in_quotes(bad);
}

TEST(Text, QuotesAreSafeToPrint) {
  EXPECT_EQ(in_quotes("blk.0"), "'blk.0'");
  EXPECT_EQ(in_quotes("é"), "'é'");
  EXPECT_EQ(in_quotes("\x1b[0m\n\x7f"), "'\\x1b[0m\\x0a\\x7f'");
  EXPECT_EQ(in_quotes("\xC2\x9B"), "'\\xc2\\x9b'");  // a control character of its own in some terminals
  EXPECT_EQ(in_quotes("a\xFF"), "'a\\xff'");
  const std::string shown(80, 'a');
  EXPECT_EQ(in_quotes(shown), fmt::format("'{}'", shown));
  EXPECT_EQ(in_quotes(shown + "a"), fmt::format("'{}...' (81 bytes)", shown));
}

}  // namespace
}  // namespace ridge::io
