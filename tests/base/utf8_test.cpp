// UTF-8 is read as it is written, and nothing else is read as a code point.
#include "base/utf8.h"

#include <gtest/gtest.h>

namespace ridge {
namespace {

TEST(Utf8, EveryCodePointIsReadBack) {
  for (uint32_t code = 0; code <= 0x10FFFF; ++code) {
    const Utf8Char read = first_utf8(utf8(code) + "x");
    const bool is_surrogate = code >= 0xD800 && code < 0xE000;
    ASSERT_EQ(read.kind == Utf8Kind::valid, !is_surrogate) << code;
    if (is_surrogate) continue;
    ASSERT_EQ(read.code, code);
  }
  EXPECT_EQ(utf8(0x7F), "\x7F");
  EXPECT_EQ(utf8(0xE9), "é");
  EXPECT_EQ(utf8(0x20AC), "€");
  EXPECT_EQ(utf8(0x1F600), "😀");
}

TEST(Utf8, OverlongFormsStrayBytesAndTooLargeOnesAreBroken) {
  for (const char* text : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                           "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2\x28\xA1", "\xED\xA0\x80"})
    EXPECT_EQ(first_utf8(text).kind, Utf8Kind::broken) << text;
  for (const char* text : {"\xC3", "\xE2\x82", "\xF0\x9F\x98"}) {
    EXPECT_EQ(first_utf8(text).kind, Utf8Kind::incomplete);
    EXPECT_EQ(first_utf8(text).length, std::string_view(text).size());
  }
}

}  // namespace
}  // namespace ridge
