#include "base/json.h"

#include <gtest/gtest.h>

#include "base/work_limit.h"

namespace ridge {
namespace {

std::string nested(int depth) { return std::string(size_t(depth), '[') + std::string(size_t(depth), ']'); }
OrderedJson read(const std::string& text, const JsonLimits& limits = {}) {
  return parse_within<OrderedJson>(text, limits).or_throw();
}

TEST(OrderedJson, KeepsTheOrderOfKeysAndFindsThem) {
  std::string text = "{";
  for (int i = 0; i < 1000; ++i) text += fmt::format("\"{}\":{},", 7919 * i % 1000, i);
  text.back() = '}';
  OrderedJson json = read(text);
  EXPECT_EQ(json.dump(), text);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(json[std::to_string(7919 * i % 1000)], i);
  EXPECT_FALSE(json.contains("1000"));
  // Few keys and many are kept in different ways: keys go from one to the other.
  for (int i = 0; i < 995; ++i) EXPECT_EQ(json.erase(std::to_string(7919 * i % 1000)), 1u);
  EXPECT_EQ(json.dump(), R"({"405":995,"324":996,"243":997,"162":998,"81":999})");
  const OrderedJson copy = json;
  json["new"] = true;
  EXPECT_FALSE(copy.contains("new"));
  EXPECT_TRUE(json.contains("81"));
}

TEST(OrderedJson, IsEqualWhereKeysAndOrderAre) {
  EXPECT_EQ(read(R"({"a":1,"b":[2]})"), read(R"({"a":1,"b":[2]})"));
  EXPECT_NE(read(R"({"a":1,"b":2})"), read(R"({"b":2,"a":1})"));
  OrderedJson joined = read(R"({"a":1,"b":2})");
  joined.update(read(R"({"b":3,"c":4})"));
  EXPECT_EQ(joined.dump(), R"({"a":1,"b":3,"c":4})");
  const OrderedJson listed = {{"x", 1}, {"y", {{"z", nullptr}}}};
  EXPECT_EQ(listed.dump(), R"({"x":1,"y":{"z":null}})");
}

TEST(ParseWithin, TheLastOfTwoEqualKeysCounts) {
  EXPECT_EQ(read(R"({"a":[1,2],"b":0,"a":{"c":3}})").dump(), R"({"a":{"c":3},"b":0})");
}

TEST(ParseWithin, LimitsAreNamed) {
  EXPECT_EQ(parse_within<OrderedJson>(nested(64)).has_value(), true);
  const auto deep = parse_within<OrderedJson>(nested(65));
  ASSERT_FALSE(deep);
  EXPECT_EQ(deep.error().kind, ErrorKind::usage);
  EXPECT_EQ(deep.error().message, "nested deeper than 64 levels");
  const auto many = parse_within<OrderedJson>("[1,2,3]", {.values = 3});
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().message, "more than 3 values");
  const auto wrong = parse_within<OrderedJson>("{\"a\":\n x}");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().kind, ErrorKind::bad_file);
  EXPECT_NE(wrong.error().message.find("at line 2, column 2"), std::string::npos) << wrong.error().message;
  EXPECT_FALSE(parse_within<OrderedJson>(std::string(1 << 20, '[')));
  EXPECT_FALSE(parse_within<OrderedJson>(std::string("{\"a\":1}\0", 8)));
}

/// A key that counts how often it is compared.
struct CountedKey {
  std::string text;
  static inline int64_t n_compared = 0;
  explicit CountedKey(std::string_view of) : text(of) {}
  operator std::string_view() const { return text; }
  bool operator==(std::string_view other) const { return ++n_compared, text == other; }
};

TEST(OrderedMap, ManyKeysAreNotSearchedOneByOne) {
  constexpr int kKeys = 40000;
  OrderedMap<CountedKey, int, void, void> map;
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < kKeys; ++i) map.emplace(CountedKey(fmt::format("key {}", i)), i);
  EXPECT_EQ(map.size(), size_t(kKeys));
  EXPECT_EQ(map.find("key 39999")->second, 39999);
  // A map that searches all its keys compares 2.4 billion times.
  EXPECT_LT(CountedKey::n_compared, 4 * kKeys);
}

TEST(Member, OfAnythingButAnObjectIsMissing) {
  const OrderedJson json = read(R"({"text":"a","number":1,"none":null})");
  EXPECT_EQ(*member_text(json, "text"), "a");
  EXPECT_EQ(member_text(json, "number"), nullptr);
  EXPECT_EQ(member(json, "other"), nullptr);
  EXPECT_TRUE(member(json, "none")->is_null());
  EXPECT_TRUE(member_is(json, "text", "a"));
  EXPECT_FALSE(member_is(json, "number", "1"));
  for (const char* other : {"1", "\"text\"", "[\"text\"]", "null", "true"})
    EXPECT_EQ(member(read(other), "text"), nullptr);
}

TEST(WorkLimit, EndsWorkWhileItLives) {
  const auto work = [] {
    for (int i = 0; i < 1000; ++i) WorkLimit::check();
  };
  std::atomic<bool> stopping = false;
  work();
  {
    const WorkLimit long_enough(std::chrono::hours(1), stopping);
    work();
    {
      const WorkLimit over(std::chrono::milliseconds(0), stopping);
      try {
        work();
        ADD_FAILURE() << "the time was over";
      } catch (const WorkEnded& ended) {
        EXPECT_FALSE(ended.stopping);
      }
    }
    work();
    stopping = true;
    EXPECT_THROW(work(), WorkEnded);
    std::string big = "[0";
    for (int i = 0; i < 1000; ++i) big += ",0";
    EXPECT_THROW((void)parse_within<OrderedJson>(big + "]"), WorkEnded);
  }
  work();
}

}  // namespace
}  // namespace ridge
