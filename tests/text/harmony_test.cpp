// Messages of harmony, with marks as tokens and as text, in every cut.
#include "text/harmony.h"

#include <gtest/gtest.h>

#include "text/tool_calls.h"

namespace ridge::text {
namespace {

bool is_mark(std::string_view part) { return part.starts_with("<|") && part.ends_with("|>"); }

/// The answer in parts; where marks are control tokens, parts that are marks come as tokens.
std::string read(const std::vector<std::string>& parts, bool control, OutputParser::Options options = {}) {
  options.harmony = true;
  if (options.header.empty()) options.header = "assistant";
  if (control)
    for (const std::string_view mark : harmony_marks()) options.control.emplace_back(mark);
  OutputParser parser(options);
  std::string content, reasoning, calls;
  const auto add = [&](const OutputDelta& delta) {
    content += delta.content, reasoning += delta.reasoning;
    for (const ToolCall& call : delta.calls) {
      EXPECT_EQ(call.id.size(), 9u);
      calls += fmt::format(" call {} {}", call.name, call.arguments);
    }
  };
  for (const std::string& part : parts) {
    if (control && is_mark(part)) add(parser.feed_mark(part));
    else
      for (const char c : part) add(parser.feed({&c, 1}));
  }
  add(parser.finish());
  return fmt::format("content '{}' reasoning '{}'{}", content, reasoning, calls);
}

std::string both(const std::vector<std::string>& parts, const OutputParser::Options& options = {ToolFormat::harmony}) {
  const std::string tokens = read(parts, true, options);
  EXPECT_EQ(read(parts, false, options), tokens);
  return tokens;
}

TEST(Harmony, ChannelsAreReasoningAndContent) {
  EXPECT_EQ(both({"<|channel|>", "analysis", "<|message|>", "Think.", "<|end|>", "<|start|>", "assistant",
                  "<|channel|>", "final", "<|message|>", "Hello <b>!"}),
            "content 'Hello <b>!' reasoning 'Think.'");
  EXPECT_EQ(both({"<|channel|>", "final", "<|message|>", "Hi"}), "content 'Hi' reasoning ''");
  // Two messages of a channel are two lines; a preamble of the channel commentary is for people.
  EXPECT_EQ(both({"<|channel|>", "analysis",   "<|message|>", "A",       "<|end|>", "<|start|>", "assistant",
                  "<|channel|>", "analysis",   "<|message|>", "B",       "<|end|>", "<|start|>", "assistant",
                  "<|channel|>", "commentary", "<|message|>", "I look.", "<|end|>", "<|start|>", "assistant",
                  "<|channel|>", "final",      "<|message|>", "C"}),
            "content 'I look.\nC' reasoning 'A\nB'");
  // An end that is missing.
  EXPECT_EQ(both({"<|channel|>", "analysis", "<|message|>", "A", "<|channel|>", "final", "<|message|>", "B"}),
            "content 'B' reasoning 'A'");
}

TEST(Harmony, MessagesToFunctionsAreCalls) {
  EXPECT_EQ(both({"<|channel|>", "analysis", "<|message|>", "A", "<|end|>", "<|start|>", "assistant", "<|channel|>",
                  "commentary to=functions.f ", "<|constrain|>", "json", "<|message|>", "{\"x\": 1}"}),
            "content '' reasoning 'A' call f {\"x\":1}");
  EXPECT_EQ(both({" to=functions.g", "<|channel|>", "commentary json", "<|message|>", "", "<|call|>", "<|start|>",
                  "assistant", "<|channel|>", "commentary to=functions.h", "<|message|>", "{}", "<|call|>"}),
            "content '' reasoning '' call g {} call h {}");
  EXPECT_EQ(both({"<|channel|>", "commentary to=functions.f", "<|message|>", "{\"x\": ", "<|end|>"}),
            "content '{\"x\": ' reasoning ''");
  EXPECT_EQ(both({"<|channel|>", "commentary to=functions.f", "<|message|>", "{}"}, {ToolFormat::none}),
            "content '{}' reasoning ''");
  EXPECT_EQ(both({"<|channel|>", "analysis to=python", "<|message|>", "print(1)"}), "content '' reasoning 'print(1)'");
}

TEST(Harmony, LostHeadersDoNotHideTheAnswer) {
  EXPECT_EQ(both({"<|channel|>", "analysis", "<|message|>", "A", "<|end|>", "<|start|>", "assistant", "final: Hello!"}),
            "content 'final: Hello!' reasoning 'A'");
  const std::string prose(3000, 'x');
  EXPECT_TRUE(both({prose}) == fmt::format("content '{}' reasoning ''", prose));
  EXPECT_EQ(both({}), "content '' reasoning ''");
  EXPECT_EQ(both({"<|channel|>", "fin"}), "content '' reasoning ''");  // cut off
  EXPECT_EQ(both({"<|channel|>", "analysis", "<|message|>", "A", "<|end|>", "<|start|>", "assis"}),
            "content '' reasoning 'A'");
}

TEST(Harmony, TextThatSpellsMarksIsTextWhereTheyAreTokens) {
  EXPECT_EQ(read({"<|channel|>", "final", "<|message|>", "say ", "<|en", "d|> or ", "<|start", "|>"}, true),
            "content 'say <|end|> or <|start|>' reasoning ''");
}

TEST(Harmony, ThePromptSaysWhereTheAnswerBegins) {
  EXPECT_EQ(harmony_header("<|start|>user<|message|>hi<|end|><|start|>assistant"), "assistant");
  EXPECT_EQ(harmony_header("<|start|>assistant<|channel|>final<|message|>Well"),
            "assistant<|channel|>final<|message|>");
  EXPECT_EQ(harmony_header("<|start|>user<|message|>hi<|end|>"), "");
  EXPECT_EQ(harmony_header("hi"), "");
  OutputParser::Options options{ToolFormat::harmony};
  options.header = "assistant<|channel|>analysis<|message|>";
  EXPECT_EQ(both({"A", "<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "B"}, options),
            "content 'B' reasoning 'A'");
}

}  // namespace
}  // namespace ridge::text
