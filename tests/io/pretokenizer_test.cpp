#include "io/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "base/rng.h"
#include "cases/paths.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/pretokenizer_regex.h"

namespace ridge::io {
namespace {

std::vector<std::string> cut(PreTokenizer pre, std::string_view text) {
  std::vector<std::string> parts;
  cut_text(pre, text, [&](std::string_view part) { parts.emplace_back(part); });
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
    for (int pre = 0; pre <= int(PreTokenizer::none); ++pre) {
      std::string joined;
      for (const std::string& part : cut(PreTokenizer(pre), text)) {
        ASSERT_FALSE(part.empty());
        joined += part;
      }
      ASSERT_EQ(joined, text);
    }
  }
}

TEST(PreTokenizer, TimeIsLinearInTheText) {
  const std::clock_t start = std::clock();  // processor time: a busy machine does not count
  for (const std::string unit : {" ", "\n", " \n", "a", "1", "!", "'", " '", "\xE2\x80\x83", "\x80", "A", "aA", "A1",
                                 " \t", "\xCC\x81", "!a", "\xE4\xB8\x80", "a\n "}) {
    std::string text;
    while (text.size() < (size_t(1) << 18)) text += unit;
    for (int pre = 0; pre <= int(PreTokenizer::none); ++pre) {
      size_t bytes = 0;
      cut_text(PreTokenizer(pre), text, [&](std::string_view part) { bytes += part.size(); });
      ASSERT_EQ(bytes, text.size());
    }
  }
  // 50 MiB take some seconds; a quadratic scan reads 32 GiB in each case, minutes for one and hours for all.
  EXPECT_LT(double(std::clock() - start) / CLOCKS_PER_SEC, 60.0);
}

TEST(PreTokenizer, LinesAreRunsOfNewlinesAndOfTheRest) {
  EXPECT_EQ(cut(PreTokenizer::lines, "a b\n\n\nc\r\n"), (Parts{"a b", "\n\n\n", "c\r", "\n"}));
}

/// The cuts that the tokenizers package makes (tests/golden/pretokens), for every name that is known.
TEST(PreTokenizer, EveryNameCutsAsHuggingFacesTokenizersDo) {
  const Json golden =
      parse_json(read_text_file(RIDGE_SOURCE_DIR "/tests/golden/pretokens/cuts.json", 1 << 20).or_throw(), "cuts.json")
          .or_throw();
  const auto texts = golden["texts"].get<std::vector<std::string>>();
  ASSERT_GT(texts.size(), 190u);
  std::map<PreTokenizer, std::string> checked;
  for (const auto& [name, pre] : pretokenizer_names()) {
    if (!checked.try_emplace(pre, name).second) continue;  // another name of the same
    ASSERT_EQ(golden[std::string(name)].size(), texts.size()) << name;
    for (size_t i = 0; i < texts.size(); ++i) {
      std::vector<size_t> lengths;
      for (const std::string& part : cut(pre, texts[i])) lengths.push_back(part.size());
      EXPECT_EQ(Json(lengths), golden[std::string(name)][i]) << name << ": " << Json(texts[i]);
    }
  }
  EXPECT_EQ(checked.size() + 1, golden.size());
}

TEST(PreTokenizer, APatternOutsideOfTheKnownPartIsNotTaken) {
  for (const char* pattern : {"(a|b)", "a$", "(?=a)", "\\p{Nd}", "a)"})
    EXPECT_THROW(SplitRegex{pattern}, std::logic_error) << pattern;
}

}  // namespace
}  // namespace ridge::io
