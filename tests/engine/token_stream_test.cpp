#include "engine/decode/token_stream.h"

#include <gtest/gtest.h>

namespace ridge {
namespace {

/// Token i is the character of code i; 0 ends.
struct Streamed {
  GenerateOptions options;
  TokenStream::OnText on_text = [this](std::string_view text) { return chunks.emplace_back(text), go_on; };
  GenerateResult result;
  std::vector<std::string> chunks;
  bool go_on = true;

  /// Pushes until the stream wants no more; returns how many it took.
  size_t push(std::string_view text) {
    TokenStream stream({.piece = [](int32_t token) { return std::string(1, char(token)); },
                        .is_end = [](int32_t token) { return token == 0; }},
                       options, on_text, result);
    size_t n = 0;
    while (n < text.size() && stream.wants_more()) stream.push(uint8_t(text[n++]));
    stream.finish();
    return n;
  }
};

TEST(TokenStream, EndsAtTheEndToken) {
  using namespace std::string_view_literals;
  Streamed run;
  EXPECT_EQ(run.push("ab\0cd"sv), 3u);
  EXPECT_EQ(run.result.reason, StopReason::end_token);
  EXPECT_EQ(run.result.text, "ab");
  EXPECT_EQ(run.result.tokens, (std::vector<int32_t>{'a', 'b', 0}));
  Streamed on;
  on.options.ignore_eos = true;
  EXPECT_EQ(on.push("ab\0cd"sv), 5u);
}

/// Capital letters are marks.
TEST(TokenStream, MarksPartTexts) {
  for (const std::string stop : {"", "bc", "b"}) {
    GenerateOptions options;
    if (!stop.empty()) options.stop = {stop};
    std::string heard;
    const TokenStream::OnText on_text = [&](std::string_view text) { return heard += text, true; };
    GenerateResult result;
    TokenStream stream({.piece = [](int32_t token) { return std::string(1, char(token)); },
                        .is_end = [](int32_t token) { return token == 0; },
                        .mark = [](int32_t t) { return isupper(t) ? std::string(1, char(t)) : std::string(); }},
                       options, on_text, result, [&](std::string_view mark) {
                         heard += fmt::format("<{}>", mark);
                         return mark != "Z";
                       });
    for (const char c : std::string("\xC3"
                                    "abXcZd"))
      if (stream.wants_more()) stream.push(uint8_t(c));
    stream.finish();
    EXPECT_EQ(heard, stop == "b" ? "\xEF\xBF\xBD"
                                   "a"
                                 : "\xEF\xBF\xBD"
                                   "ab<X>c<Z>")
        << stop;
    EXPECT_EQ(result.text, stop == "b" ? "\xEF\xBF\xBD"
                                         "a"
                                       : "\xEF\xBF\xBD"
                                         "abc")
        << "marks are no text";
    EXPECT_EQ(result.reason, stop == "b" ? StopReason::stop_string : StopReason::interrupted);
  }
}

TEST(TokenStream, EndsAtTheTokenLimit) {
  Streamed run;
  run.options.max_tokens = 3;
  EXPECT_EQ(run.push("abcdef"), 3u);
  EXPECT_EQ(run.result.reason, StopReason::max_tokens);
  EXPECT_EQ(run.result.text, "abc");
  Streamed none;
  none.options.max_tokens = 0;
  EXPECT_EQ(none.push("abc"), 0u);
  Streamed wrong;
  wrong.options.max_tokens = -2;
  EXPECT_THROW(wrong.push("abc"), Error);
}

TEST(TokenStream, HoldsBackWhatMayBecomeAStopString) {
  Streamed run;
  run.options.stop = {"xyz", "q"};
  EXPECT_EQ(run.push("axyaxyzb"), 7u);
  EXPECT_EQ(run.result.reason, StopReason::stop_string);
  EXPECT_EQ(run.result.stop, "xyz");
  EXPECT_EQ(run.chunks, (std::vector<std::string>{"a", "xya"}));
  Streamed open;
  open.options.stop = {"xyz"};
  open.push("axy");
  EXPECT_EQ(open.result.text, "axy") << "what never became one comes at the end";
}

TEST(TokenStream, ACharacterThatALimitCutsIsLeftOut) {
  const std::string text = "a\xF0\x9F\x8E\x89";  // a, then a character of four bytes
  for (int n = 1; n <= 5; ++n) {
    Streamed run;
    run.options.max_tokens = n;
    run.push(text);
    EXPECT_EQ(run.result.text, n < 5 ? "a" : text) << n;
  }
  Streamed full;  // more was wanted, the context had no room
  full.push(text.substr(0, 3));
  EXPECT_EQ(full.result.text, "a");
  Streamed open;  // what may become a stop string is text all the same
  open.options.stop = {"ab"};
  open.options.max_tokens = 3;
  open.push(text);
  EXPECT_EQ(open.result.text, "a");
}

TEST(TokenStream, ABrokenCharacterOfTheModelsOwnIsShown) {
  using namespace std::string_view_literals;
  Streamed ended;
  ended.push("a\xF0\x9F\0"sv);
  EXPECT_EQ(ended.result.reason, StopReason::end_token);
  EXPECT_EQ(ended.result.text, "a\xEF\xBF\xBD");
  Streamed within;
  within.options.max_tokens = 4;
  within.push("a\xF0\x9Fz"sv);
  EXPECT_EQ(within.result.text, "a\xEF\xBF\xBDz");
}

TEST(TokenStream, EndsWhenTheReaderHasEnough) {
  Streamed run;
  run.go_on = false;
  EXPECT_EQ(run.push("abc"), 1u);
  EXPECT_EQ(run.result.reason, StopReason::interrupted);
}

}  // namespace
}  // namespace ridge
