// Answers of models, whole and in every cut: the same content, reasoning and calls.
#include "text/tool_calls.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ridge::text {
namespace {

struct Answer {
  std::string content, reasoning;
  std::vector<ToolCall> calls;
};

void add(Answer& answer, OutputDelta delta) {
  answer.content += delta.content;
  answer.reasoning += delta.reasoning;
  for (ToolCall& call : delta.calls) answer.calls.push_back(std::move(call));
}

Answer read(const OutputParser::Options& options, std::string_view text, size_t piece) {
  OutputParser parser(options);
  Answer answer;
  for (size_t at = 0; at < text.size(); at += piece) add(answer, parser.feed(text.substr(at, piece)));
  add(answer, parser.finish());
  return answer;
}

std::string shown(const Answer& answer) {
  std::string text = fmt::format("content '{}' reasoning '{}'", answer.content, answer.reasoning);
  for (const ToolCall& call : answer.calls) text += fmt::format(" call {} {}", call.name, call.arguments);
  return text;
}

/// The answer in pieces of all sizes gives the same as at once, ids too.
Answer read_all_ways(const OutputParser::Options& options, std::string_view text) {
  Answer whole = read(options, text, std::max<size_t>(text.size(), 1));
  for (size_t piece = 1; piece < text.size(); ++piece) {
    const Answer cut = read(options, text, piece);
    EXPECT_EQ(shown(cut), shown(whole)) << "pieces of " << piece << " bytes of " << text;
    for (size_t i = 0; i < std::min(cut.calls.size(), whole.calls.size()); ++i)
      EXPECT_EQ(cut.calls[i].id, whole.calls[i].id);
  }
  return whole;
}

std::string result(ToolFormat format, std::string_view text) { return shown(read_all_ways({format}, text)); }

TEST(ToolCalls, TagsAroundJson) {
  EXPECT_EQ(
      result(ToolFormat::tags,
             "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, \"}</tool_call>\"]}}\n</tool_call>"),
      "content 'I look.' reasoning '' call f {\"x\":[1,\"}</tool_call>\"]}");
  EXPECT_EQ(result(ToolFormat::tags,
                   "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>\n{\"name\":\"g\",\"arguments\":\"{\\\"a\\\": "
                   "1}\"}</tool_call> end\n"),
            "content 'end\n' reasoning '' call f {} call g {\"a\":1}");
  // The end tag is missing: the JSON is whole, so it is a call.
  EXPECT_EQ(result(ToolFormat::tags, "<tool_call>{\"name\": \"f\", \"arguments\": {}}"),
            "content '' reasoning '' call f {}");
}

TEST(ToolCalls, WhatIsNoCallIsContentWordForWord) {
  for (const char* text :
       {"a <tool_call> b", "<tool_call>", "<tool_call>\n{\"name\": 3}\n</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [", "<tool_call>{\"name\": \"f\"]}</tool_call> x",
        "<tool_call>{\"name\": \"\"}</tool_call>", "  <tool_cal", "<tool_call>[1]</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": 1}</tool_call>", "<tool_call>{\"a\": \"b\n\"}</tool_call>  "})
    EXPECT_EQ(result(ToolFormat::tags, text), fmt::format("content '{}' reasoning ''", text));
  EXPECT_EQ(result(ToolFormat::none, "<tool_call>{\"name\": \"f\"}</tool_call>"),
            "content '<tool_call>{\"name\": \"f\"}</tool_call>' reasoning ''");
  // A call behind something that only looked like one.
  EXPECT_EQ(result(ToolFormat::tags, "<tool_call>{no} <tool_call>{\"name\": \"f\"}</tool_call>"),
            "content '<tool_call>{no}' reasoning '' call f {}");
  const std::string deep = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": " + std::string(5000, '[');
  EXPECT_EQ(shown(read({ToolFormat::tags}, deep, deep.size())), fmt::format("content '{}' reasoning ''", deep));
  const std::string in_text = "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": " + std::string(500, '[') +
                              std::string(500, ']') + "}\"}</tool_call>";
  EXPECT_EQ(shown(read({ToolFormat::tags}, in_text, in_text.size())),
            fmt::format("content '{}' reasoning ''", in_text));
}

TEST(ToolCalls, XmlTakesTypesFromTheSchema) {
  OutputParser::Options options{ToolFormat::xml};
  options.tools =
      Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties":
      {"s": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}, "o": {"type": "object"}, "any": {}}}}}])");
  EXPECT_EQ(shown(read_all_ways(
                options,
                "Well.\n\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
                "<parameter=b>\nTrue\n</parameter>\n<parameter=o>\n{\"k\": "
                "[1]}\n</parameter>\n<parameter=any>None</parameter>\n"
                "<parameter=other>\ntwo\nlines\n</parameter>\n</function>\n</tool_call>\n<tool_call><function=g></"
                "function></tool_call>")),
            "content 'Well.' reasoning '' call f "
            "{\"s\":\"12\",\"n\":12,\"b\":true,\"o\":{\"k\":[1]},\"any\":null,\"other\":\"two\\nlines\"} call g {}");
  // Without the outer tag, with a value that is not of its type, and with a missing end of a parameter.
  EXPECT_EQ(shown(read_all_ways(options, "<function=f><parameter=n>many<parameter=s>x</parameter></function> bye")),
            "content 'bye' reasoning '' call f {\"n\":\"many\",\"s\":\"x\"}");
  for (const char* text :
       {"<tool_call><function=f><parameter=x>1", "<function=>a</function>", "<tool_call><fun",
        "<tool_call><b></tool_call>", "<tool_call><function=f><parameter=></parameter></function></tool_call>"})
    EXPECT_EQ(shown(read_all_ways(options, text)), fmt::format("content '{}' reasoning ''", text));
  options.tools =
      Json::parse(R"([1, {"name": "f", "parameters": []}, {"name": "f", "parameters": {"properties": {"x": 1}}}])");
  EXPECT_EQ(shown(read_all_ways(options, "<function=f><parameter=x>1</parameter></function>")),
            "content '' reasoning '' call f {\"x\":\"1\"}");
}

TEST(ToolCalls, Llama) {
  EXPECT_EQ(result(ToolFormat::llama, "{\"name\": \"f\", \"parameters\": {\"x\": 1}}"),
            "content '' reasoning '' call f {\"x\":1}");
  EXPECT_EQ(result(ToolFormat::llama, "\n<|python_tag|>{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"g\"}"),
            "content '' reasoning '' call f {} call g {}");
  for (const char* text : {"{\"city\": \"Paris\"} is JSON", "So {\"name\": \"f\"}", " {", "<|python_tag|>print(1)"})
    EXPECT_EQ(result(ToolFormat::llama, text), fmt::format("content '{}' reasoning ''", text));
}

TEST(ToolCalls, JsonThatNamesATool) {
  const OutputParser::Options options{.format = ToolFormat::json,
                                      .tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}},
                                                              {"type": "function", "function": {"name": "g"}}])")};
  const auto result = [&](std::string_view text) { return shown(read_all_ways(options, text)); };
  EXPECT_EQ(result("{\"name\": \"f\", \"arguments\": {\"x\": 1}}"), "content '' reasoning '' call f {\"x\":1}");
  EXPECT_EQ(result("\n{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": {}}"),
            "content '' reasoning '' call f {} call g {}");
  EXPECT_EQ(result("<think>hm</think>\n{\"name\": \"g\", \"arguments\": {}}"), "content '' reasoning 'hm' call g {}");
  EXPECT_EQ(result("Sure.\n```json\n{\"name\": \"f\", \"arguments\": {}}\n```"),
            "content 'Sure.' reasoning '' call f {}");
  EXPECT_EQ(result("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"), "content '' reasoning '' call f {}");
  for (const char* text : {"{\"name\": \"other\", \"arguments\": {}}", "{\"city\": \"Rome\"}", "So {\"name\": \"f\"}",
                           "{\"name\":", "```json\n{\"name\": \"Bo\"}\n```"})
    EXPECT_EQ(result(text), fmt::format("content '{}' reasoning ''", text));
}

TEST(ToolCalls, Mistral) {
  const Answer answer = read_all_ways({ToolFormat::mistral},
                                      "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}, \"id\": "
                                      "\"abcdefghi\"}, {\"name\": \"g\", \"arguments\": {}}]");
  EXPECT_EQ(shown(answer), "content '' reasoning '' call f {\"x\":1} call g {}");
  ASSERT_EQ(answer.calls.size(), 2u);
  EXPECT_EQ(answer.calls[0].id, "abcdefghi");
  EXPECT_EQ(answer.calls[1].id.size(), 9u);
  EXPECT_EQ(result(ToolFormat::mistral, "Yes.[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g_2{}"),
            "content 'Yes.' reasoning '' call f {\"x\":1} call g_2 {}");
  const Answer named = read_all_ways({ToolFormat::mistral}, "[TOOL_CALLS]f[CALL_ID]ABCDEFGH9[ARGS]{}");
  ASSERT_EQ(named.calls.size(), 1u);
  EXPECT_EQ(named.calls[0].id, "ABCDEFGH9");
  for (const char* text : {"[TOOL_CALLS]", "[TOOL_CALLS]f", "[TOOL_CALLS]two words{}", "[TOOL_CALLS][]",
                           "[TOOL_CALLS][[{\"name\": \"f\"}]]", "[TOOL_CALLS]f[X]{}"})
    EXPECT_EQ(result(ToolFormat::mistral, text), fmt::format("content '{}' reasoning ''", text));
}

TEST(ToolCalls, GraniteAndDeepSeek) {
  EXPECT_EQ(result(ToolFormat::granite, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]"),
            "content '' reasoning '' call f {\"x\":1}");
  EXPECT_EQ(result(ToolFormat::granite, "<tool_call>[{\"name\": \"f\"}]</tool_call>"),
            "content '' reasoning '' call f {}");
  EXPECT_EQ(
      result(ToolFormat::deepseek,
             "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\": "
             "1}\n```<｜tool▁call▁end｜>\n"
             "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
      "content 'Hm.' reasoning '' call f {\"x\":1} call g {}");
  EXPECT_EQ(result(ToolFormat::deepseek, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\nno {}"),
            "content '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\nno {}' reasoning ''");
}

TEST(ToolCalls, AnEndTagThatTheLimitCutsIsNoContent) {
  const std::string call = "{\"name\": \"f\", \"arguments\": {\"x\": 1}}", name = "function<｜tool▁sep｜>f\n";
  const auto cuts = [](ToolFormat format, const std::string& begin, const std::string& end,
                       const std::string& value = "1") {
    for (size_t n = 0; n <= end.size(); ++n)
      EXPECT_EQ(result(format, begin + end.substr(0, n)), "content '' reasoning '' call f {\"x\":" + value + "}")
          << end.substr(0, n);
  };
  cuts(ToolFormat::tags, "<tool_call>" + call, "\n</tool_call>");
  cuts(ToolFormat::xml, "<tool_call><function=f><parameter=x>1</parameter></function>", "\n</tool_call>", "\"1\"");
  cuts(ToolFormat::granite, "<tool_call>[" + call + "]", "</tool_call>");
  cuts(ToolFormat::deepseek, "<｜tool▁call▁begin｜>" + name + "```json\n{\"x\": 1}",
       "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>");
  // Behind content it is content, and so is what only begins like a tag.
  EXPECT_EQ(result(ToolFormat::granite, "a </tool_c"), "content 'a </tool_c' reasoning ''");
  EXPECT_EQ(result(ToolFormat::tags, "<tool_call>" + call + "</tool_X"),
            "content '</tool_X' reasoning '' call f {\"x\":1}");
}

TEST(ToolCalls, Reasoning) {
  EXPECT_EQ(result(ToolFormat::tags, "<think>\nLet me <tool_call> see.\n</think>\n\nYes <think>"),
            "content 'Yes <think>' reasoning 'Let me <tool_call> see.'");
  EXPECT_EQ(result(ToolFormat::none, " \n<think></think>a </think> b"), "content 'a </think> b' reasoning ''");
  EXPECT_EQ(result(ToolFormat::none, "<think>never ends "), "content '' reasoning 'never ends'");
  EXPECT_EQ(result(ToolFormat::none, "<thin"), "content '<thin' reasoning ''");
  EXPECT_EQ(result(ToolFormat::none, "\n two"), "content '\n two' reasoning ''");
  EXPECT_EQ(result(ToolFormat::llama, "<think>a</think>{\"name\": \"f\"}"), "content '' reasoning 'a' call f {}");
  OutputParser::Options options{ToolFormat::tags};
  options.in_reasoning = true;
  EXPECT_EQ(shown(read_all_ways(options, "\nso\n</think>\n\n<tool_call>{\"name\": \"f\"}</tool_call>")),
            "content '' reasoning 'so' call f {}");
  options = {ToolFormat::none, false};
  EXPECT_EQ(shown(read_all_ways(options, "<think>a</think>b")), "content '<think>a</think>b' reasoning ''");
  EXPECT_EQ(opened_reasoning("<|im_start|>assistant\n<think>\n")->close, "</think>");
  EXPECT_FALSE(opened_reasoning("<think>\n\n</think>\n\n"));
  EXPECT_EQ(opened_reasoning("[/INST][THINK]")->close, "[/THINK]");
  EXPECT_TRUE(prompt_closes_reasoning("<think>\n\n</think>\n\n"));
  EXPECT_FALSE(prompt_closes_reasoning("<|im_start|>assistant\n"));
}

/// Parts that are marked true come as control tokens.
std::string with_tokens(OutputParser::Options options, const std::vector<std::pair<bool, std::string>>& parts) {
  for (const std::string_view mark : marks_of(options.format))
    if (mark != "```") options.control.emplace_back(mark);  // no vocabulary has it
  OutputParser parser(options);
  Answer answer;
  for (const auto& [is_mark, text] : parts) add(answer, is_mark ? parser.feed_mark(text) : parser.feed(text));
  add(answer, parser.finish());
  return shown(answer);
}

TEST(ToolCalls, MarksAreTokens) {
  EXPECT_EQ(with_tokens({ToolFormat::mistral}, {{true, "[TOOL_CALLS]"}, {false, "[{\"name\": \"f\"}]"}}),
            "content '' reasoning '' call f {}");
  EXPECT_EQ(with_tokens({ToolFormat::mistral}, {{false, "Yes."},
                                                {true, "[TOOL_CALLS]"},
                                                {false, "f"},
                                                {true, "[CALL_ID]"},
                                                {false, "ABCDEFGH9"},
                                                {true, "[ARGS]"},
                                                {false, "{\"x\""},
                                                {false, ": 1}"},
                                                {true, "[TOOL_CALLS]"},
                                                {false, "g"},
                                                {true, "[ARGS]"},
                                                {false, "{}"}}),
            "content 'Yes.' reasoning '' call f {\"x\":1} call g {}");
  EXPECT_EQ(with_tokens({ToolFormat::granite}, {{true, "<|tool_call|>"}, {false, "[{\"name\": \"f\"}]"}}),
            "content '' reasoning '' call f {}");
  EXPECT_EQ(
      with_tokens({ToolFormat::tags},
                  {{true, "<tool_call>"}, {false, "\n{\"name\": \"f\"}\n"}, {true, "</tool_call>"}, {false, "x"}}),
      "content 'x' reasoning '' call f {}");
  EXPECT_EQ(with_tokens({ToolFormat::llama}, {{true, "<|python_tag|>"}, {false, "{\"name\": \"f\"}"}}),
            "content '' reasoning '' call f {}");
  EXPECT_EQ(with_tokens({ToolFormat::deepseek}, {{true, "<｜tool▁calls▁begin｜>"},
                                                 {true, "<｜tool▁call▁begin｜>"},
                                                 {false, "function"},
                                                 {true, "<｜tool▁sep｜>"},
                                                 {false, "f\n```json\n{}\n```"},
                                                 {true, "<｜tool▁call▁end｜>"},
                                                 {true, "<｜tool▁call▁begin｜>"},
                                                 {false, "g"},
                                                 {true, "<｜tool▁sep｜>"},
                                                 {false, "{\"x\": 1}"},
                                                 {true, "<｜tool▁call▁end｜>"},
                                                 {true, "<｜tool▁calls▁end｜>"}}),
            "content '' reasoning '' call f {} call g {\"x\":1}");
  for (const ReasoningMarks& marks : reasoning_marks())
    EXPECT_EQ(with_tokens({}, {{true, std::string(marks.open)},
                               {false, "\nI think"},
                               {true, std::string(marks.close)},
                               {false, "\n\nYes"}}),
              "content 'Yes' reasoning 'I think'");
}

TEST(ToolCalls, TokensNeverBecomeTextAndTextNeverBecomesTokens) {
  // No call behind the mark: the mark is gone, the text is there.
  EXPECT_EQ(with_tokens({ToolFormat::tags}, {{false, "a "}, {true, "<tool_call>"}, {false, "{no}"}}),
            "content 'a {no}' reasoning ''");
  EXPECT_EQ(with_tokens({ToolFormat::mistral}, {{true, "[TOOL_CALLS]"}}), "content '' reasoning ''");
  EXPECT_EQ(with_tokens({ToolFormat::tags}, {{true, "</think>"}, {false, "b"}, {true, "<think>"}, {false, "c"}}),
            "content 'bc' reasoning ''");
  EXPECT_EQ(with_tokens({ToolFormat::tags}, {{true, "<think>"}, {false, "x"}, {true, "<tool_call>"}, {false, "y"}}),
            "content '' reasoning 'xy'");
  // What spells a mark that is a token is text.
  for (const char* text : {"<tool_call>{\"name\": \"f\"}</tool_call>", "<think>a</think>b"})
    EXPECT_EQ(with_tokens({ToolFormat::tags}, {{false, text}}), fmt::format("content '{}' reasoning ''", text));
}

TEST(ToolCalls, TextThatCannotBecomeACallIsNotHeldBack) {
  OutputParser parser({ToolFormat::tags});
  EXPECT_EQ(parser.feed("Hello <b> wor").content, "Hello <b> wor");
  EXPECT_EQ(parser.feed("ld <tool").content, "ld");
  EXPECT_EQ(parser.feed("box> ").content, " <toolbox>");
  EXPECT_EQ(parser.finish().content, " ");
}

TEST(ToolCalls, TextWithoutAnEndIsGivenUpOn) {
  const std::string word(5000, 'a'), begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>";
  for (const auto& [format, text] : {std::pair(ToolFormat::mistral, "[TOOL_CALLS]" + word + "[ARGS]{}"),
                                     std::pair(ToolFormat::deepseek, begin + word + "\n```json\n{}\n```")}) {
    EXPECT_EQ(shown(read({format}, text, 1)), fmt::format("content '{}' reasoning ''", text));
    EXPECT_EQ(shown(read({format}, text, text.size())), fmt::format("content '{}' reasoning ''", text));
    OutputParser parser({format});
    EXPECT_GT(parser.feed(text.substr(0, 2000)).content.size(), 1900u);  // it is not held back until the end
  }
  EXPECT_EQ(result(ToolFormat::mistral, "[TOOL_CALLS]" + word.substr(0, 64) + "[ARGS]{}"),
            "content '' reasoning '' call " + word.substr(0, 64) + " {}");
}

TEST(ToolCalls, IdsFollowTheSeed) {
  const auto id = [](uint64_t seed) {
    OutputParser::Options options{ToolFormat::tags};
    options.seed = seed;
    return read(options, "<tool_call>{\"name\": \"f\"}</tool_call>", 100).calls.at(0).id;
  };
  EXPECT_EQ(id(1), id(1));
  EXPECT_NE(id(1), id(2));
  EXPECT_EQ(id(7).size(), 9u);
  EXPECT_EQ(id(7).find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"),
            std::string::npos);
}

TEST(ToolCalls, TheFormatIsThatOfTheTemplate) {
  EXPECT_EQ(detect_tool_format("{{ '<tool_call>' }}"), ToolFormat::tags);
  EXPECT_EQ(detect_tool_format("{{ '<tool_call>\\n<function=' }}"), ToolFormat::xml);
  EXPECT_EQ(detect_tool_format("[TOOL_CALLS]"), ToolFormat::mistral);
  EXPECT_EQ(detect_tool_format("<|tool_call|>"), ToolFormat::granite);
  EXPECT_EQ(detect_tool_format("<｜tool▁call▁begin｜>"), ToolFormat::deepseek);
  EXPECT_EQ(detect_tool_format("<|python_tag|>"), ToolFormat::llama);
  EXPECT_EQ(detect_tool_format("Environment: ipython {\"name\": x, \"parameters\": y}"), ToolFormat::llama);
  EXPECT_EQ(detect_tool_format("{{ messages }}"), ToolFormat::none);
}

}  // namespace
}  // namespace ridge::text
