// Published chat templates against the prompts that transformers makes with them (the reference data's README).
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "cases/reference_data.h"
#include "text/conversation.h"

namespace ridge::text {
namespace {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<std::string> token(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<std::string>());
}

ChatInput input_of(const Json& json) {
  ChatInput input;
  input.messages = json["messages"];
  input.tools = json.value("tools", Json());
  input.extra = json.value("extra", Json::object());
  input.add_generation_prompt = json["add_generation_prompt"].get<bool>();
  input.bos_token = token(json["bos_token"]);
  input.eos_token = token(json["eos_token"]);
  strptime(json["now"].get<std::string>().c_str(), "%Y-%m-%dT%H:%M:%S", &input.now);
  return input;
}

void check(const ChatTemplate& chat, const Json& one) {
  const Result<std::string> prompt = chat.render(input_of(one["input"]));
  if (!one.contains("error")) {
    ASSERT_TRUE(prompt) << prompt.error().message;
    EXPECT_EQ(*prompt, one["expected"].get<std::string>());
    return;
  }
  ASSERT_FALSE(prompt) << *prompt;
  EXPECT_EQ(refused_by_template(prompt.error()), one["error_type"] == "TemplateError") << prompt.error().message;
  if (!refused_by_template(prompt.error())) return;
  EXPECT_EQ(prompt.error().message, one["error"].get<std::string>());
}

bool uses_tools(const Json& messages) {
  return std::ranges::any_of(messages, [](const Json& m) { return m.contains("tool_calls") || m["role"] == "tool"; });
}

/// A conversation that the template can show is not changed on its way: fitted, it gives the same prompt.
void check_fitted(const ChatTemplate& chat, const Json& one) {
  ChatInput input = input_of(one["input"]);
  const TemplateHabits habits = habits_of(chat, input);
  if (one.contains("error") || (uses_tools(input.messages) && !(habits.calls && habits.results))) return;
  input.messages = fit_messages(habits, input.messages, nullptr);
  EXPECT_EQ(chat.render(input).or_throw(), one["expected"].get<std::string>());
}

TEST(TemplateData, PublishedTemplatesGiveTheirPrompts) {
  const auto data = reference_data();
  if (!data || !std::filesystem::is_directory(*data / "parity/chat-templates"))
    GTEST_SKIP() << "published chat templates are not here (set RIDGE_DATA)";
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*data / "parity/chat-templates")) {
    if (!entry.is_directory()) continue;
    const Result<ChatTemplate> chat = ChatTemplate::parse(read_text(entry.path() / "template.jinja"));
    ASSERT_TRUE(chat) << entry.path() << ": " << chat.error().message;
    for (const Json& one : Json::parse(read_text(entry.path() / "cases.json"))) {
      SCOPED_TRACE(entry.path().filename().string() + "/" + one["name"].get<std::string>());
      check(*chat, one);
      check_fitted(*chat, one);
      ++cases;
    }
  }
  EXPECT_GE(cases, 400);
  RecordProperty("cases", cases);
}

}  // namespace
}  // namespace ridge::text
