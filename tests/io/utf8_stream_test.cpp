#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "io/text.h"
#include "io/tokenizer.h"

namespace ridge::io {
namespace {

constexpr const char* kBroken = "\xEF\xBF\xBD";

std::string sanitised(std::string_view bytes) {
  Utf8Stream stream;
  std::string out = stream.push(bytes);
  return out + stream.finish();
}

/// Random bytes with many lead and continuation bytes, so that sequences and their damage are common.
std::string random_bytes(Rng& rng) {
  constexpr uint8_t kFavourites[] = {0x41, 0x80, 0xBF, 0xC2, 0xC3, 0xE0, 0xE2, 0xED,
                                     0xEF, 0xF0, 0xF4, 0xF5, 0x9F, 0xA0, 0x90};
  std::string bytes;
  for (uint64_t left = rng.next() % 24; left > 0; --left) {
    const uint64_t pick = rng.next();
    bytes += char(pick & 1 ? kFavourites[(pick >> 1) % std::size(kFavourites)] : uint8_t(pick >> 8));
  }
  return bytes;
}

TEST(Utf8Stream, EveryCodePointComesThroughUnchangedByteByByte) {
  for (uint32_t code = 0; code <= 0x10FFFF; code += code < 0x3000 ? 1 : 61) {
    if (code >= 0xD800 && code < 0xE000) continue;
    const std::string text = utf8(code);
    std::string out;
    Utf8Stream stream;
    for (size_t i = 0; i < text.size(); ++i) {
      const std::string got = stream.push({&text[i], 1});
      ASSERT_EQ(got.empty(), i + 1 < text.size()) << code;
      out += got;
    }
    ASSERT_EQ(out + stream.finish(), text) << code;
  }
}

TEST(Utf8Stream, OneReplacementForEachLongestPrefixOfASequence) {
  const std::pair<std::string, std::string> cases[] = {
      {"a\x80z", std::string("a") + kBroken + "z"},  // a lone continuation
      {"\xC3(", std::string(kBroken) + "("},         // cut short
      {"\xE2\x82(", std::string(kBroken) + "("},     // two of three bytes are one stretch
      {"\xC0\xAF", std::string(kBroken) + kBroken},  // overlong
      {"\xE0\x80\x80", std::string(kBroken) + kBroken + kBroken},
      {"\xED\xA0\x80", std::string(kBroken) + kBroken + kBroken},  // surrogate
      {"\xF4\x90\x80\x80", std::string(kBroken) + kBroken + kBroken + kBroken},
      {"\xF0\x9F\x98", kBroken},  // unfinished at the end of the stream
      {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
  };
  for (const auto& [bytes, expected] : cases) EXPECT_EQ(sanitised(bytes), expected);
}

TEST(Utf8Stream, AnyCutGivesTheSameTextAndOnlyWholeSequences) {
  Rng rng(7);
  for (int round = 0; round < 20000; ++round) {
    const std::string bytes = random_bytes(rng);
    Utf8Stream stream;
    std::string out;
    for (size_t begin = 0; begin < bytes.size();) {
      const size_t length = 1 + rng.next() % 5;
      const std::string part = stream.push(std::string_view(bytes).substr(begin, length));
      ASSERT_TRUE(valid_utf8(part)) << in_quotes(bytes);
      out += part;
      begin += length;
    }
    out += stream.finish();
    ASSERT_EQ(out, sanitised(bytes)) << in_quotes(bytes);
    if (valid_utf8(bytes)) {
      ASSERT_EQ(out, bytes);
    }
    ASSERT_EQ(stream.finish(), "");
  }
}

TEST(Utf8Stream, HoldsBackAtMostThreeBytes) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("ab\xF0\x9F\x98"), "ab");
  EXPECT_EQ(stream.push("\x80z"), "\xF0\x9F\x98\x80z");
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.push("x"), std::string(kBroken) + "x");
}

}  // namespace
}  // namespace ridge::io
