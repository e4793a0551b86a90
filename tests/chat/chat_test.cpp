// The parts of ridge chat that need no terminal: notes, turns, sides, files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/temp_dir.h"
#include "chat/answer_printer.h"
#include "chat/debate.h"
#include "chat/file.h"
#include "io/json.h"

namespace ridge::chat {
namespace {

using testing::HasSubstr;

TEST(ReadingNotes, AreRareAndOfLongPromptsOnly) {
  ReadingNotes notes;
  EXPECT_EQ(notes.line(100, 1000, 29), "");
  EXPECT_EQ(notes.line(100, 1000, 30), "prompt   100 of 1000 tokens read, 4m30s left\n");
  EXPECT_EQ(notes.line(150, 1000, 45), "");
  EXPECT_EQ(notes.line(500, 1000, 60), "prompt   500 of 1000 tokens read, 1m00s left\n");
  EXPECT_EQ(notes.line(1000, 1000, 500), "") << "all are read";
}

TEST(AnswerPrinter, StopStringsEndTheContentOnly) {
  for (const std::string_view text : {"<think>lo</think>Hello there", "<think>lo</think>Hello"}) {
    AnswerPrinter printer(false, {"lo", "?"});
    printer.begin({});
    size_t fed = 0;
    while (fed < text.size() && printer.feed(text.substr(fed, 1))) ++fed;
    const text::Json message = printer.finish();
    EXPECT_EQ(message["content"], "Hel");
    EXPECT_EQ(message["reasoning_content"], "lo");
    ASSERT_TRUE(printer.stop());
    EXPECT_EQ(*printer.stop(), "lo");
  }
  AnswerPrinter printer(false, {"lo!"});
  printer.begin({});
  EXPECT_TRUE(printer.feed("Hello"));
  EXPECT_EQ(printer.finish()["content"], "Hello") << "what was held back";
  EXPECT_FALSE(printer.stop());
}

TEST(Turns, TheOldestGoesWithItsAnswerAndTheLastOneStays) {
  text::Json messages = {message_of("system", "s"), message_of("user", "a"), message_of("assistant", "b"),
                         message_of("user", "c"), message_of("assistant", "d")};
  EXPECT_EQ(drop_oldest_turn(messages), 2);
  EXPECT_EQ(messages, text::Json({message_of("system", "s"), message_of("user", "c"), message_of("assistant", "d")}));
  EXPECT_EQ(drop_oldest_turn(messages), 0);
  EXPECT_EQ(messages.size(), 3u);
}

TEST(Sides, HaveNamesPersonasOrModels) {
  const Side named = parse_side("Ann: You love cats.", "A");
  EXPECT_EQ(named.name + "|" + named.persona + "|" + named.model_path, "Ann|You love cats.|");
  const Side persona = parse_side("You love dogs", "B");
  EXPECT_EQ(persona.name + "|" + persona.persona + "|" + persona.model_path, "B|You love dogs|");
  const Side long_name = parse_side(std::string(25, 'x') + ": y", "A");
  EXPECT_EQ(long_name.name, "A") << "no name is so long";
  const TempDir dir;
  dir.write("first.gguf", std::string_view("x"));
  const std::string path = (dir / "first.gguf").native();
  const Side model = parse_side(path, "A");
  EXPECT_EQ(model.name + "|" + model.persona + "|" + model.model_path, "first||" + path);
}

TEST(SavedChats, ComeBackWithReasoningAndCalls) {
  const TempDir dir;
  const std::string path = (dir / "chat.json").native();
  SavedChat chat{.model = "m",
                 .kv = "f16",
                 .messages = {message_of("system", "s"), message_of("user", "é"), message_of("assistant", "")}};
  chat.messages.back()["reasoning_content"] = "r";
  chat.messages.back()["tool_calls"] =
      text::Json::parse(R"([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}])");
  ASSERT_TRUE(save_chat(chat, path));
  const SavedChat back = load_chat(path).or_throw();
  EXPECT_EQ(back.model, "m");
  EXPECT_EQ(back.kv, "f16");
  EXPECT_EQ(io::Json::parse(back.messages.dump()), io::Json::parse(chat.messages.dump())) << "in any order of keys";
  for (const char* text :
       {"[]", "{}", R"({"version": 2, "messages": []})",
        R"({"version": 1, "messages": [{"role": "tool", "content": "x"}]})",
        R"({"version": 1, "messages": [{"role": "user", "content": 5}]})",
        R"({"version": 1, "messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]})"}) {
    dir.write("bad.json", std::string_view(text));
    EXPECT_THAT(load_chat((dir / "bad.json").native()).error().message, HasSubstr("bad.json")) << text;
  }
}

}  // namespace
}  // namespace ridge::chat
