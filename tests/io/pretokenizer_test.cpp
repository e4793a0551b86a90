#include "io/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/rng.h"

namespace ridge::io {
namespace {

std::vector<std::string> cut(PreTokenizer pre, std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = pretoken_end(pre, text, begin);
    if (end <= begin || end > text.size()) throw std::logic_error("a pre-token is empty or reaches past the text");
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return parts;
}

using Parts = std::vector<std::string>;

TEST(PreTokenizer, Gpt2CutsAsItsPatternDoes) {
  const auto gpt2 = [](std::string_view text) { return cut(PreTokenizer::gpt2, text); };
  EXPECT_EQ(gpt2("It's we'll 'S x's"), (Parts{"It", "'s", " we", "'ll", " '", "S", " x", "'s"}));
  EXPECT_EQ(gpt2("a  b   "), (Parts{"a", " ", " b", "   "}));
  EXPECT_EQ(gpt2("a\n\n b"), (Parts{"a", "\n\n", " b"}));
  EXPECT_EQ(gpt2("a \n\tb"), (Parts{"a", " \n", "\t", "b"}));
  EXPECT_EQ(gpt2("x12345y!?"), (Parts{"x", "12345", "y", "!?"}));
  EXPECT_EQ(gpt2("\xC3\xA9t\xC3\xA9 \xC2\xBD \xE4\xB8\x96"),
            (Parts{"\xC3\xA9t\xC3\xA9", " \xC2\xBD", " \xE4\xB8\x96"}));
  EXPECT_EQ(gpt2("a\xC2\xA0 b"), (Parts{"a", "\xC2\xA0", " b"}));  // no-break space is white space
}

TEST(PreTokenizer, LlamaCutsAsItsPatternDoes) {
  const auto llama = [](std::string_view text) { return cut(PreTokenizer::llama_bpe, text); };
  EXPECT_EQ(llama("DON'T SHOUT'S"), (Parts{"DON", "'T", " SHOUT", "'S"}));
  EXPECT_EQ(llama("1234567 12"), (Parts{"123", "456", "7", " ", "12"}));
  EXPECT_EQ(llama("(word) \tword"), (Parts{"(word", ")", " ", "\tword"}));
  EXPECT_EQ(llama("end.\r\n\r\nnext"), (Parts{"end", ".\r\n\r\n", "next"}));
  EXPECT_EQ(llama("a \n \n  b"), (Parts{"a", " \n \n", " ", " b"}));
  EXPECT_EQ(llama("  !!x"), (Parts{" ", " !!", "x"}));
  EXPECT_EQ(llama("'\xC5\xBFx"), (Parts{"'\xC5\xBF", "x"}));  // long s is an s without case
}

TEST(PreTokenizer, Qwen2DiffersInSingleDigitsOnly) {
  EXPECT_EQ(cut(PreTokenizer::qwen2, "a 1234, b"), (Parts{"a", " ", "1", "2", "3", "4", ",", " b"}));
}

TEST(PreTokenizer, BrokenUtf8CountsAsASymbolAndNothingIsLost) {
  EXPECT_EQ(cut(PreTokenizer::gpt2, "a\xFF\xFE!b"), (Parts{"a", "\xFF\xFE!", "b"}));
  Rng rng(3);
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (uint64_t left = rng.next() % 20; left > 0; --left) text += " \n\r'sS1a!\xC3\xA9\xE2\x80\xFF"[rng.next() % 15];
    for (const PreTokenizer pre : {PreTokenizer::gpt2, PreTokenizer::llama_bpe, PreTokenizer::qwen2}) {
      std::string joined;
      for (const std::string& part : cut(pre, text)) joined += part;
      ASSERT_EQ(joined, text);
    }
  }
}

TEST(PreTokenizer, TimeIsLinearInTheText) {
  const auto start = std::chrono::steady_clock::now();
  for (const std::string unit : {" ", "\n", " \n", "a", "1", "!", "'", " '", "\xE2\x80\x83", "\x80"}) {
    std::string text;
    while (text.size() < (size_t(1) << 20)) text += unit;
    for (const PreTokenizer pre : {PreTokenizer::gpt2, PreTokenizer::llama_bpe, PreTokenizer::qwen2})
      for (size_t begin = 0; begin < text.size();) begin = pretoken_end(pre, text, begin);
  }
  // 30 MiB: about a second, some ten under sanitizers; a quadratic scan of one case would take hours.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

}  // namespace
}  // namespace ridge::io
