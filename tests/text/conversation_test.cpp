// What templates show of conversations, and the form that conversations get for them.
#include "text/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ridge::text {
namespace {

using testing::HasSubstr;
using testing::Not;

// Templates of our own, each of a habit that published ones have.
constexpr const char* kChatml =
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] + '<|im_end|>' }}\n{% endfor %}";
constexpr const char* kTools =
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}";
constexpr const char* kAlternate =
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no turns') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}";
constexpr const char* kKnownRoles =
    "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }}{% elif m.role == 'assistant' %}A:{{ m.content }}"
    "{% endif %}{{ '\n' }}{% endfor %}";
constexpr const char* kParts =
    "{% for m in messages %}{{ m.role }}:{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% "
    "endif %}"
    "{% endfor %}{{ '\n' }}{% endfor %}";

TemplateHabits habits(const char* source) { return habits_of(ChatTemplate::parse(source).or_throw(), ChatInput()); }

std::string prompt(const char* source, const Json& messages, const Json& tools = nullptr) {
  const ChatTemplate chat = ChatTemplate::parse(source).or_throw();
  ChatInput input;
  input.messages = fit_messages(habits_of(chat, input), messages, tools);
  const Result<std::string> text = chat.render(input);
  return text ? *text : text.error().message;
}

Json history() {
  return Json::parse(R"([{"role": "user", "content": "Weather?"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
        "function": {"name": "weather", "arguments": {"city": "Rome"}}}]},
      {"role": "tool", "tool_call_id": "1", "content": "sunny"},
      {"role": "user", "content": "Thanks."}])");
}

Json tools() {
  return Json::parse(R"([{"type": "function", "function": {"name": "weather", "description": "Looks out.",
      "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}])");
}

TEST(Habits, AreFoundByTrying) {
  TemplateHabits h = habits(kChatml);
  EXPECT_TRUE(h.system && h.lone_results && h.needs_content);
  EXPECT_FALSE(h.tools || h.calls);
  h = habits(kTools);
  EXPECT_TRUE(h.system && h.tools && h.calls && h.results);
  EXPECT_FALSE(h.needs_content);
  h = habits(kAlternate);
  EXPECT_FALSE(h.system || h.tools || h.calls || h.results || h.lone_results);
  h = habits(kKnownRoles);
  EXPECT_FALSE(h.system || h.tools || h.calls || h.results);
  EXPECT_TRUE(h.part_roles.empty());
  h = habits(kParts);
  EXPECT_TRUE(h.takes_parts("user") && h.takes_parts("system") && h.takes_parts("assistant") && h.takes_parts("tool"));
  for (const char* hostile :
       {"{{ raise_exception('no') }}", "", "{% for i in range(100000) %}{{ messages }}{% endfor %}"})
    EXPECT_TRUE(habits(hostile).tools) << hostile;
}

TEST(FitMessages, TemplatesThatShowAllAreLeftAlone) {
  EXPECT_EQ(fit_messages(habits(kTools), history(), nullptr), history());
}

TEST(FitMessages, ListsOfParts) {
  EXPECT_EQ(prompt(kParts, Json::parse(R"([{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}])")),
            "system:S\nuser:hi\n");
}

TEST(FitMessages, ContentThatIsNull) {
  Json messages = history();
  EXPECT_EQ(prompt(kChatml, messages),
            "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n"
            "{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\"}}<|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n"
            "<|im_start|>user\nThanks.<|im_end|>\n");
  messages[1].erase("content");
  EXPECT_THAT(prompt(kChatml, messages), HasSubstr("\"Rome\""));
  messages[1] = {{"role", "assistant"}, {"content", nullptr}};
  EXPECT_THAT(prompt(kChatml, messages), HasSubstr("assistant\n<|im_end|>"));
}

TEST(FitMessages, ArgumentsAsTexts) {
  constexpr const char* kTexts =
      "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}<c>{{ c.function.name + "
      "c.function.arguments }}"
      "{% endfor %}{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";
  EXPECT_EQ(prompt(kTexts, history()), "<user>Weather?<c>weather{\"city\":\"Rome\"}<tool>sunny<user>Thanks.");
}

TEST(FitMessages, ResultsDoNotVanish) {
  EXPECT_EQ(prompt(kKnownRoles, history()),
            "U:Weather?\nA:{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\"}}\n"
            "U:Result of weather: sunny\n\nThanks.\n");
  Json two = history();
  two[1]["content"] = "Let me see.";
  two[1]["tool_calls"].push_back({{"id", "2"}, {"function", {{"name", "news"}, {"arguments", Json::object()}}}});
  two[3] = {{"role", "tool"}, {"tool_call_id", "2"}, {"content", "none"}};
  EXPECT_EQ(prompt(kAlternate, two),
            "<user>Weather?<assistant>Let me see.\n{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\"}}\n"
            "{\"name\":\"news\",\"arguments\":{}}<user>Result of weather: sunny\n\nResult of news: none");
}

TEST(FitMessages, ManyResultsTakeTimeByTheirBytes) {
  Json many = history();
  for (int i = 0; i < 100000; ++i) many.push_back(many[2]);  // joined one by one they were copied 100000 times
  const TemplateHabits known = habits(kKnownRoles);
  const std::clock_t start = std::clock();
  const Json fitted = fit_messages(known, many, nullptr);
  EXPECT_LT(double(std::clock() - start) / CLOCKS_PER_SEC, 5);
  EXPECT_EQ(fitted.size(), 4u);
}

TEST(FitMessages, ToolsAreDescribedWhereTheTemplateDoesNot) {
  const Json hi = Json::parse(R"([{"role": "user", "content": "hi"}])");
  std::string text = prompt(kChatml, hi, tools());
  EXPECT_TRUE(text.starts_with("<|im_start|>system\nYou can call")) << text;
  for (const char* part : {"Looks out.", "\"city\"", "{\"name\": NAME, \"arguments\": {...}}"})
    EXPECT_THAT(text, HasSubstr(part));
  text =
      prompt(kChatml, Json::parse(R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}])"),
             tools());
  EXPECT_TRUE(text.starts_with("<|im_start|>system\nBe brief.\n\nYou can call")) << text;
  text = prompt(kAlternate, hi, tools());
  EXPECT_TRUE(text.starts_with("<user>You can call")) << text;
  EXPECT_TRUE(text.ends_with("result.\n\nhi")) << text;
  EXPECT_THAT(prompt(kParts, hi, tools()), HasSubstr("Looks out."));
  EXPECT_THAT(plain_prompt(fit_messages(plain_habits(), hi, tools()), true), HasSubstr("System: You can call"));
}

TEST(FitMessages, WhatIsNoCallStays) {
  const Json odd = Json::parse(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": "none"},
      {"role": "assistant", "tool_calls": [1, {"function": 2}]}, {"role": "tool"}, {"role": "tool", "content": 5}])");
  EXPECT_EQ(fit_messages(habits(kKnownRoles), odd, nullptr)[1]["tool_calls"], "none");
  EXPECT_EQ(fit_messages(habits(kTools), odd, nullptr), odd);
}

}  // namespace
}  // namespace ridge::text
