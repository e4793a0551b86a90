// ridge chat through pipes, and on a terminal for what only a terminal has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <sstream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "cli/terminal.h"

namespace ridge {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

Outcome chat(const std::string& input, std::vector<std::string> more = {}) {
  std::vector<std::string> args{"chat", "-m", kTinyModel, "-n", "12", "--temp", "0"};
  args.insert(args.end(), more.begin(), more.end());
  return run_ridge(args, {.input = input});
}

/// The answers of a conversation with --json.
std::vector<json> answers(const Outcome& outcome) {
  std::vector<json> rows;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) rows.push_back(json::parse(line));
  return rows;
}

TEST(Chat, AnswersGoToStdoutAndFactsToStderr) {
  const Outcome outcome = chat("Hello\n");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 1) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("no chat template"));
  EXPECT_EQ(chat("Hello\n", {"--quiet"}).err, "");
}

TEST(Chat, TheNextTurnReadsOnlyWhatIsNew) {
  const std::vector<json> rows = answers(chat("Hello, my friend\nAnd\n", {"--json"}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["n_past"].get<int>() + 1,
            rows[0]["n_past"].get<int>() + rows[1]["n_read"].get<int>() + rows[1]["n_written"].get<int>());
  EXPECT_LT(rows[1]["n_read"], rows[0]["n_read"]);
}

TEST(Chat, ACacheThatStaysGivesTheAnswersOfOneThatWasReadAnew) {
  const TempDir dir;
  const std::string file = (dir / "talk.json").native();
  const Outcome first = chat("Hello\n/save " + file + "\nAnd then\n", {"--json"});
  const Outcome second = chat("/load " + file + "\nAnd then\n", {"--json"});
  ASSERT_EQ(answers(first).size(), 2u) << first.err;
  ASSERT_EQ(answers(second).size(), 1u) << second.err;
  EXPECT_EQ(answers(second)[0]["content"], answers(first)[1]["content"]);
  EXPECT_GT(answers(second)[0]["n_read"], answers(first)[1]["n_read"]);
}

TEST(Chat, SpeculationLeavesTheConversation) {
  const std::string typed = "Once upon a time, a time, a time\nAnd then\n/regen\n/kv rotor-3\nSo\n/undo\nWhy\n/stats\n";
  const std::vector<std::string> flags{"-n", "40", "--temp", "0.7", "--seed", "4"};
  const Outcome plain = chat(typed, flags);
  ASSERT_EQ(plain.code, 0) << plain.err;
  const auto talk = [](const std::string& out) { return out.substr(0, out.find("prompts  ")); };
  for (std::vector<std::string> spec : {std::vector<std::string>{"--spec-type", "lookup"},
                                        {"--spec-type", "draft", "-md", kTinyModel, "-ctkd", "rotor-3"}}) {
    const std::string type = spec[1];
    spec.insert(spec.end(), flags.begin(), flags.end());
    const Outcome outcome = chat(typed, spec);
    EXPECT_EQ(talk(outcome.out), talk(plain.out)) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("spec     " + type + ": ")) << "in /stats";
  }
  EXPECT_THAT(plain.out, Not(HasSubstr("spec     ")));
}

TEST(Chat, RegenSamplesAnotherAnswerToTheSamePrompt) {
  const Outcome outcome = chat("Once\n/regen\n", {"--json", "--temp", "1.5", "--seed", "5"});
  const std::vector<json> rows = answers(outcome);
  ASSERT_EQ(rows.size(), 2u) << outcome.err;
  EXPECT_NE(rows[0]["content"], rows[1]["content"]);
  EXPECT_EQ(rows[1]["n_read"], 1) << "the prompt is in the cache";
  EXPECT_EQ(chat("Once\n/regen\n", {"--json", "--temp", "1.5", "--seed", "5"}).err, outcome.err);
}

TEST(Chat, UndoAndResetForget) {
  const std::vector<json> rows = answers(chat("Once\nwow\n/undo\nwow\n/reset\nOnce\n", {"--json"}));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[2]["content"], rows[1]["content"]);
  EXPECT_EQ(rows[3]["content"], rows[0]["content"]);
}

TEST(Chat, TheSystemPromptMattersAndSurvivesAReset) {
  const TempDir dir;
  const std::string file = (dir / "talk.json").native();
  const Outcome outcome = chat("Hi\n/system You are a cat\nHi\n/reset\n/save " + file + "\n/system\n", {"--quiet"});
  EXPECT_THAT(outcome.out, HasSubstr("system   You are a cat\n"));
  const json saved = json::parse(slurp(file));
  EXPECT_EQ(saved["messages"], json::parse(R"([{"role": "system", "content": "You are a cat"}])"));
  EXPECT_EQ(saved["kv"], "f16");
  EXPECT_NE(answers(chat("Hi\n", {"--json"}))[0]["content"],
            answers(chat("Hi\n", {"--json", "--system", "You are a cat"}))[0]["content"]);
}

TEST(Chat, TheCacheChangesInMidConversation) {
  const Outcome outcome = chat("Hello\n/kv\n/kv rotor-3\n/kv nonsense\n/kv\nAnd\n", {"--json"});
  EXPECT_EQ(outcome.code, 0);
  const std::vector<json> rows = answers(outcome);
  ASSERT_EQ(rows.size(), 2u) << outcome.err;
  const std::string n = std::to_string(rows[0]["n_past"].get<int>()) + " tokens\n";
  EXPECT_THAT(outcome.err, HasSubstr("cache    f16: 640 bytes/token (f16: 640, ratio 1.00), " + n));
  const size_t changed = outcome.err.find("cache    rotor-3: 200 bytes/token (f16: 640, ratio 3.20), " + n);
  ASSERT_NE(changed, outcome.err.npos) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("error: unknown KV cache format 'nonsense'"));
  EXPECT_NE(outcome.err.find("cache    rotor-3", changed + 1), outcome.err.npos) << "a wrong name changes nothing";
}

TEST(Chat, MessagesOfSeveralLines) {
  const TempDir dir;
  const std::string file = (dir / "talk.json").native();
  chat("one\\\ntwo\n\"\"\"\nthree\n\n/four\n\"\"\"\n/save " + file + "\n");
  const json messages = json::parse(slurp(file))["messages"];
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0]["content"], "one\ntwo");
  EXPECT_EQ(messages[2]["content"], "three\n\n/four");
}

TEST(Chat, AFullContextForgetsTheOldestTurnsAndSaysSo) {
  const TempDir dir;
  const std::string file = (dir / "talk.json").native();
  std::string input = "/system Stay\n";
  for (int i = 0; i < 12; ++i) input += "message " + std::to_string(i) + "\n";
  const Outcome outcome = chat(input + "/save " + file + "\n");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("oldest messages are forgotten"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("error")));
  const json messages = json::parse(slurp(file))["messages"];
  EXPECT_EQ(messages[0]["content"], "Stay");
  EXPECT_EQ(messages[1]["role"], "user");
  EXPECT_NE(messages[1]["content"], "message 0");
  EXPECT_EQ(messages[messages.size() - 2]["content"], "message 11");
}

TEST(Chat, AMessageThatNeverFitsIsRefusedAndForgotten) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "word ";
  const Outcome outcome = chat("Hello\n" + text + "\n/undo\n");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("the context holds 128 (raise --ctx-size)"));
  EXPECT_THAT(outcome.out, HasSubstr("undone   0 messages left"));
}

TEST(Chat, AnAnswerThatFillsTheContextSaysSo) {
  const Outcome outcome = chat("Once upon a time\n", {"-n", "-1", "-c", "40"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("the context of 40 tokens is full"));
}

TEST(Chat, WrongCommandsChangeNothing) {
  const Outcome outcome = chat("/regen\n/undo\n/save\n/load /nowhere/x\n/save /nowhere/x\n/frobnicate\n/quit\nHello\n");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "") << "nothing is answered after /quit";
  for (const char* what : {"there is no answer yet", "there is no message yet", "/save needs a file name",
                           "there is no folder '/nowhere'", "there is no command /frobnicate"})
    EXPECT_THAT(outcome.err, HasSubstr(what));
}

TEST(Chat, FilesThatAreNoConversationAreRefused) {
  const TempDir dir;
  for (const char* bytes :
       {"{}", "[1]", "x", R"({"version": 2, "messages": []})", R"({"version": 1, "messages": [{"role": "user"}]})",
        R"({"version": 1, "messages": [{"role": "tool", "content": "x"}]})",
        R"({"version": 1, "messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]})"}) {
    const std::string file = dir.write("talk.json", std::string_view(bytes)).native();
    const Outcome outcome = chat("/load " + file + "\n");
    EXPECT_THAT(outcome.err, HasSubstr("error: ")) << bytes;
    EXPECT_THAT(outcome.out, Not(HasSubstr("loaded"))) << bytes;
  }
}

TEST(Chat, AModelWithoutATokenizerIsRefused) {
  const Outcome outcome = run_ridge({"chat", "-m", "synth:qwen2.5-0.5b@layers=1@weights=q4_0", "-c", "64"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("has no tokenizer"));
}

TEST(Debate, SidesTakeTurnsAndSeedsRepeat) {
  const auto debate = [](const std::string& seed) {
    return run_ridge(words("chat -m {} --debate {} {} --topic pets --turns 3 -n 10 --json --temp 1 --seed {}",
                           {kTinyModel, "Ann: You love cats.", "You love dogs.", seed}));
  };
  const Outcome outcome = debate("3");
  const std::vector<json> rows = answers(outcome);
  ASSERT_EQ(rows.size(), 3u) << outcome.err;
  EXPECT_EQ(rows[0]["name"], "Ann");
  EXPECT_EQ(rows[1]["name"], "B");
  EXPECT_EQ(rows[2]["name"], "Ann");
  EXPECT_EQ(debate("3").out, outcome.out);
  EXPECT_NE(debate("4").out, outcome.out);
}

TEST(Debate, OutlastsTheContext) {
  const Outcome outcome = run_ridge(
      words("chat -m {} --debate {} {} --turns 20 -n 16 --seed 1 --json", {kTinyModel, "Ann: Cats.", "Bob: Dogs."}));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(answers(outcome).size(), 20u);
  EXPECT_THAT(outcome.err, HasSubstr("Ann's context was full"));
}

TEST(Debate, TwoModelFilesAreTwoSides) {
  const TempDir dir;
  const std::string other = (dir / "second.gguf").native();
  std::filesystem::copy_file(kTinyModel, other);
  const Outcome outcome = run_ridge({"chat", "--debate", kTinyModel, other, "--turns", "2", "-n", "5", "--seed", "1"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("stories260K: "));
  EXPECT_THAT(outcome.out, HasSubstr("second: "));
  EXPECT_THAT(outcome.err, HasSubstr("models   2"));
  EXPECT_EQ(run_ridge({"chat", "--debate", "Ann: x", "Bob: y"}).code, 2) << "personas need a model";
}

/// A context so large that an answer can take long.
std::vector<std::string> endless(std::vector<std::string> more = {}) {
  std::vector<std::string> args{"chat", "-m", kTinyModel, "-c", "200000", "-t", "1", "--temp", "1", "--seed", "1"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(ChatTerminal, CtrlCStopsTheAnswerAndKeepsTheConversation) {
  const TempDir dir;
  const std::string file = (dir / "talk.json").native();
  Terminal terminal(endless(), dir.path().native());
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("Hello\n");
  ASSERT_TRUE(terminal.wait_for(" a "));
  terminal.type("\x03");
  ASSERT_TRUE(terminal.wait_for("stopped; what was written stays")) << terminal.screen();
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("/save " + file + "\n");
  ASSERT_TRUE(terminal.wait_for("saved    2 messages")) << terminal.screen();
  EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
  EXPECT_THAT(json::parse(slurp(file))["messages"][1]["content"].get<std::string>(), HasSubstr(" a "));
}

TEST(ChatTerminal, CtrlCAtThePromptForgetsTheLine) {
  const TempDir dir;
  Terminal terminal(endless(), dir.path().native());
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("never sent");
  ASSERT_TRUE(terminal.wait_for("sent"));
  terminal.type("\x03");
  ASSERT_TRUE(terminal.wait_for("> ")) << terminal.screen();
  terminal.type("/undo\n");
  EXPECT_TRUE(terminal.wait_for("there is no message yet")) << terminal.screen();
  EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
}

TEST(ChatTerminal, LinesAreRememberedForTheirOwnerOnly) {
  const TempDir dir;
  const auto talk = [&](const std::string& keys, const std::string& shown, std::vector<std::string> more = {}) {
    Terminal terminal(endless(more), dir.path().native());
    EXPECT_TRUE(terminal.wait_for("> "));
    terminal.type(keys);
    EXPECT_TRUE(terminal.wait_for(shown)) << terminal.screen();
    EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
  };
  talk("/frob one\n", "no command /frob");
  const std::filesystem::path file = dir / "ridge/chat_history";
  EXPECT_EQ(slurp(file), "/frob one\n");
  EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms(0600));
  talk("\x1b[A\n", "no command /frob");  // the up key
  talk("/grob\n", "no command /grob", {"--no-history"});
  EXPECT_THAT(slurp(file), Not(HasSubstr("grob")));
}

TEST(ChatTerminal, ACutLineOfTheHistoryDoesNotTakeTheNextOneWithIt) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "ridge");
  dir.write("ridge/chat_history", "one\ntw");
  Terminal terminal(endless(), dir.path().native());
  EXPECT_TRUE(terminal.wait_for("> "));
  terminal.type("/frob\n");
  EXPECT_TRUE(terminal.wait_for("no command /frob")) << terminal.screen();
  EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
  EXPECT_EQ(slurp(dir / "ridge/chat_history"), "one\ntw\n/frob\n");
}

TEST(ChatTerminal, APasteIsOneMessageAndUpBringsItBack) {
  const TempDir dir;
  const std::string file = (dir / "talk.json").native();
  Terminal terminal(endless({"-n", "3"}), dir.path().native());
  ASSERT_TRUE(terminal.wait_for("\x1b[?2004h")) << "the terminal is asked to mark pastes";
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("\x1b[200~/home/me\rtwo\\\rthree\n\x1b[201~");  // line breaks as terminals send them
  ASSERT_TRUE(terminal.wait_for("three"));
  terminal.type("\r");
  ASSERT_TRUE(terminal.wait_for("> ")) << terminal.screen();
  terminal.type("\x1b[A");  // the up key
  ASSERT_TRUE(terminal.wait_for("three"));
  terminal.type(" four\r");
  ASSERT_TRUE(terminal.wait_for("> ")) << terminal.screen();
  terminal.type("/save " + file + "\r");
  ASSERT_TRUE(terminal.wait_for("saved    4 messages")) << terminal.screen();
  EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
  EXPECT_TRUE(terminal.screen().ends_with("\x1b[?2004l")) << terminal.screen();
  const json messages = json::parse(slurp(file))["messages"];
  EXPECT_EQ(messages[0]["content"], "/home/me\ntwo\\\nthree");
  EXPECT_EQ(messages[2]["content"], "/home/me\ntwo\\\nthree four");
  EXPECT_THAT(slurp(dir / "ridge/chat_history"), testing::StartsWith("/home/me\rtwo\\\rthree\n/home/me\rtwo"));
}

TEST(ChatTerminal, ABlockOfLinesComesBackWholeInTheNextConversation) {
  const TempDir dir;
  const std::string file = (dir / "talk.json").native();
  {
    Terminal terminal(endless({"-n", "3"}), dir.path().native());
    ASSERT_TRUE(terminal.wait_for("> "));
    terminal.type("\"\"\"\r");
    ASSERT_TRUE(terminal.wait_for("... "));
    terminal.type("one\rtwo\r\"\"\"\r");
    EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
  }
  Terminal terminal(endless({"-n", "3"}), dir.path().native());
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("\x1b[A");
  ASSERT_TRUE(terminal.wait_for("two"));
  terminal.type("\r");
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("/save " + file + "\r");
  ASSERT_TRUE(terminal.wait_for("saved    2 messages")) << terminal.screen();
  EXPECT_EQ(terminal.finish(), 0);
  EXPECT_EQ(json::parse(slurp(file))["messages"][0]["content"], "one\ntwo");
}

TEST(ChatTerminal, WhatIsTypedDuringAnAnswerWaitsForThePrompt) {
  const TempDir dir;
  Terminal terminal(endless(), dir.path().native());
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("Hello\n");
  ASSERT_TRUE(terminal.wait_for(" a "));
  terminal.type("/frobnicate");
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(terminal.wait_for(" a "));
  EXPECT_THAT(terminal.screen(), Not(HasSubstr("frobnicate")));
  terminal.type("\x03");
  ASSERT_TRUE(terminal.wait_for("stopped; what was written stays")) << terminal.screen();
  ASSERT_TRUE(terminal.wait_for("frobnicate")) << "at the next prompt";
  terminal.type("\n");
  EXPECT_TRUE(terminal.wait_for("no command /frobnicate")) << terminal.screen();
  EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
}

TEST(ChatTerminal, TabCompletesCommands) {
  const TempDir dir;
  Terminal terminal(endless(), dir.path().native());
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("/un\t\n");
  ASSERT_TRUE(terminal.wait_for("there is no message yet")) << terminal.screen();
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("/re\t");
  ASSERT_TRUE(terminal.wait_for("/regen  /reset")) << terminal.screen();
  terminal.type("s\t\n");
  ASSERT_TRUE(terminal.wait_for("nothing is left")) << terminal.screen();
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("/undu\n");
  ASSERT_TRUE(terminal.wait_for("did you mean /undo?")) << terminal.screen();
  EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
}

TEST(ChatTerminal, TheHistoryIsBounded) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "ridge");
  std::string lines;
  for (int i = 0; i < 1500; ++i) lines += "line " + std::to_string(i) + "\n";
  dir.write("ridge/chat_history", lines);
  Terminal terminal(endless(), dir.path().native());
  EXPECT_EQ(terminal.finish(), 0);
  const std::string kept = slurp(dir / "ridge/chat_history");
  EXPECT_EQ(std::ranges::count(kept, '\n'), 1000);
  EXPECT_TRUE(kept.starts_with("line 500\n"));
  EXPECT_EQ(std::filesystem::status(dir / "ridge/chat_history").permissions(), std::filesystem::perms(0600));
}

}  // namespace
}  // namespace ridge
