// Where prompts of ridge run come from, and what a program reads of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string_view>
#include <thread>

#include <nlohmann/json.hpp>

#include "cases/templated_model.h"
#include "cli/terminal.h"

namespace ridge {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kNoTokenizer = "synth:qwen2.5-0.5b@layers=1@weights=q4_0";

Outcome run_tiny_with(std::vector<std::string> more, const RunOptions& options = {}) {
  std::vector<std::string> args{"run", "-m", kTinyModel, "--temp", "0", "-n", "8"};
  args.insert(args.end(), more.begin(), more.end());
  return run_ridge(args, options);
}

TEST(PromptIds, ListsFilesAndStdinAreTheSame) {
  const TempDir dir;
  const std::string text = run_tiny_with({"--quiet", "--prompt-ids", "1,403,407,261"}).out;
  EXPECT_NE(text, "");
  EXPECT_EQ(run_tiny_with({"--quiet", "--prompt-ids", " 1 403\t407, 261 "}).out, text);
  EXPECT_EQ(run_tiny_with({"--quiet", "--prompt-ids", "[1, 403, 407, 261]"}).out, text);
  EXPECT_EQ(run_tiny_with({"--quiet", "--prompt-ids", "-"}, {.input = "[1,403,407,261]\n"}).out, text);
  const std::string file = dir.write("ids", std::string_view("1 403\n407 261\n")).native();
  EXPECT_EQ(run_tiny_with({"--quiet", "--prompt-ids", file}).out, text);
}

TEST(PromptIds, WhatIsNoIdIsRefused) {
  const TempDir dir;
  const std::string file = dir.write("ids", std::string_view("1 two 3")).native();
  EXPECT_THAT(run_tiny_with({"--prompt-ids", file}).err, HasSubstr("--prompt-ids: 'two' is not a token id"));
  for (const char* ids : {"1,99999999999", "1,[2]", "512", "[]", "/nowhere/ids"}) {
    const Outcome outcome = run_tiny_with({"--prompt-ids", ids});
    EXPECT_TRUE(outcome.code == 2 || outcome.code == 4) << ids << outcome.err;
    EXPECT_EQ(outcome.out, "") << ids;
  }
  EXPECT_EQ(run_tiny_with({"--prompt-ids", "1", "-p", "x"}).code, 2);
}

TEST(PromptIds, AModelWithoutATokenizerAnswersInIds) {
  const std::vector<std::string> args = words("run -m {} --prompt-ids 1,2,3 --temp 0 -n 4 -c 32", {kNoTokenizer});
  auto quiet = args, bare = args;
  quiet.push_back("--quiet");
  bare.push_back("--bare");
  const Outcome text = run_ridge(quiet);
  EXPECT_THAT(text.out, testing::MatchesRegex("([0-9]+ ){4}")) << text.err;
  EXPECT_EQ(run_ridge(bare).out.substr(0, text.out.size() - 1), text.out.substr(0, text.out.size() - 1));
}

TEST(Bare, IdsThenNumbersAndNothingElse) {
  const Outcome outcome = run_tiny_with({"--bare", "-p", "Once upon a time"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, testing::MatchesRegex("[0-9]+( [0-9]+){7}\n5 8 [0-9.]+ [0-9.]+\n"));
  const json row = json::parse(run_tiny_with({"--json", "--quiet", "-p", "Once upon a time"}).out);
  std::istringstream ids(outcome.out.substr(0, outcome.out.find('\n')));
  EXPECT_EQ(std::vector<int>(std::istream_iterator<int>(ids), {}), row["tokens"].get<std::vector<int>>());
}

TEST(RunChat, TheMessageIsWrappedAndTheAnswerEnds) {
  const Outcome outcome = run_tiny_with({"--chat", "--system", "Be kind", "-p", "Hello"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("as there is no chat template"));
  EXPECT_EQ(outcome.out, run_tiny_with({"--quiet", "-p", "System: Be kind\nUser: Hello\nAssistant:"}).out);
  EXPECT_EQ(run_tiny_with({"--chat", "--prompt-ids", "1"}).code, 2);
  EXPECT_EQ(run_tiny_with({"--system", "x", "-p", "Hello"}).code, 2);
}

constexpr const char* kTags =
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% "
    "endif %}";

class RunTemplate : public testing::Test {
 protected:
  /// On the same weights with a chat template.
  Outcome run(std::vector<std::string> more, const RunOptions& options = {}) const {
    std::vector<std::string> args{"run", "-m", model, "--temp", "0", "-n", "8"};
    args.insert(args.end(), more.begin(), more.end());
    return run_ridge(args, options);
  }
  const TempDir dir;
  const std::string model = write_templated_model(kTinyModel, dir / "chat.gguf", kTags);
};

TEST_F(RunTemplate, IsAppliedWhereTheFileHasOne) {
  const Outcome outcome = run({"-p", "Hello"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("tokens, by the chat template (--raw: plain text); greedy"));
  EXPECT_EQ(outcome.out, run({"-p", "Hello", "--chat"}).out);
  EXPECT_EQ(outcome.out, run({"-f", "-"}, {.input = "Hello\n"}).out);
  EXPECT_EQ(outcome.out, run({"-f", dir.write("text", std::string_view("Hello")).native()}).out);
  EXPECT_NE(outcome.out, run({"-p", "Hello", "--system", "Be kind"}).out);
  const std::string by_hand = "[user] Hello\n[assistant]";
  EXPECT_EQ(json::parse(run({"-p", "Hello", "--json"}).out)["n_prompt"].get<int>() + 1,
            json::parse(run({"-p", by_hand, "--raw", "--json"}).out)["n_prompt"])
      << "plain text begins with BOS, which this template leaves out";
}

TEST_F(RunTemplate, RawIsThePlainTextOfAnyModel) {
  const Outcome raw = run({"-p", "Once upon a time", "--raw"});
  EXPECT_EQ(raw.out, run_tiny_with({"-p", "Once upon a time"}).out);
  EXPECT_THAT(raw.err, HasSubstr("tokens, plain text; greedy"));
  EXPECT_NE(raw.out, run({"-p", "Once upon a time"}).out);
  EXPECT_EQ(run({"-p", "x", "--raw", "--chat"}).code, 2);
  EXPECT_EQ(run({"-p", "x", "--raw", "--system", "x"}).code, 2);
}

TEST_F(RunTemplate, TextThatIsNoMessageStaysPlainAndSaysSo) {
  const std::string state = (dir / "state").native();
  const Outcome special = run({"-p", "<s>Once", "--special", "--save-state", state});
  EXPECT_THAT(special.err, HasSubstr("plain text, without the chat template"));
  EXPECT_EQ(special.out, run({"-p", "<s>Once", "--special", "--raw"}).out);
  const Outcome loaded = run({"-p", " upon", "--load-state", state});
  EXPECT_THAT(loaded.err, HasSubstr("plain text, without the chat template"));
  EXPECT_EQ(loaded.out, run({"-p", " upon", "--load-state", state, "--raw"}).out);
  EXPECT_EQ(run({"--prompt-ids", "1,403"}).out, run_tiny_with({"--prompt-ids", "1,403"}).out);
  for (std::vector<std::string> plain :
       {std::vector<std::string>{"-p", "x", "--special"}, {"--prompt-ids", "1"}, {"-p", "x", "--load-state", state}}) {
    plain.insert(plain.end(), {"--system", "Be kind"});
    EXPECT_EQ(run(plain).code, 2);
  }
}

int n_prompt(std::vector<std::string> more, const std::string& input = "") {
  more.insert(more.end(), {"--json", "--quiet"});
  return json::parse(run_tiny_with(more, {.input = input}).out)["n_prompt"];
}

TEST(RunFile, OneLineBreakAtTheEndIsLeftOut) {
  const TempDir dir;
  const int n = n_prompt({"-p", "Once upon a time"});
  for (const char* text : {"Once upon a time", "Once upon a time\n", "Once upon a time\r\n"}) {
    EXPECT_EQ(n_prompt({"-f", "-"}, text), n) << text;
    EXPECT_EQ(n_prompt({"-f", dir.write("prompt", std::string_view(text)).native()}), n) << text;
  }
  EXPECT_EQ(n_prompt({"-f", "-"}, "Once upon a time\n\n"), n_prompt({"-p", "Once upon a time\n"}));
  EXPECT_GT(n_prompt({"-p", "Once upon a time\n"}), n);
}

TEST(RunTerminal, OneCtrlDEndsThePrompt) {
  const TempDir dir;
  for (const char* keys : {"Once upon a time\n\x04", "Once upon a time\x04"}) {
    Terminal terminal({"run", "-m", kTinyModel, "-f", "-", "-n", "4", "--temp", "0"}, dir.path().native());
    ASSERT_TRUE(terminal.wait_for("Ctrl-D ends it"));
    terminal.type(keys);
    EXPECT_TRUE(terminal.wait_for("prompt   5 tokens")) << terminal.screen();
    EXPECT_TRUE(terminal.wait_for(", there was a\r\nprefill")) << terminal.screen();
    EXPECT_EQ(terminal.wait_for_end(), 0);
  }
}

TEST(RunTerminal, CtrlCEndsTheWaitForThePrompt) {
  const TempDir dir;
  for (const char* flag : {"-f", "--prompt-ids"}) {
    Terminal terminal({"run", "-m", kTinyModel, flag, "-", "-n", "4"}, dir.path().native());
    ASSERT_TRUE(terminal.wait_for(std::string_view(flag) == "-f" ? "Ctrl-D ends it" : ""));
    if (std::string_view(flag) != "-f") std::this_thread::sleep_for(std::chrono::milliseconds(300));
    terminal.type("half a line\x03");
    EXPECT_EQ(terminal.wait_for_end(), 130) << terminal.screen();
  }
}

TEST(RunTerminal, ALongPromptShowsItsProgressAndClearsIt) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 600; ++i) text += "word ";
  const std::vector<std::string> args{"run", "-m", kTinyModel, "-p", text, "-c", "4000", "-ub", "32", "-n", "4"};
  Terminal terminal(args, dir.path().native());
  EXPECT_TRUE(terminal.wait_for("prompt [")) << terminal.screen();
  EXPECT_TRUE(terminal.wait_for("tokens")) << terminal.screen();
  EXPECT_TRUE(terminal.wait_for("\r\x1b[K")) << terminal.screen();
  EXPECT_TRUE(terminal.wait_for("prefill")) << terminal.screen();
  EXPECT_EQ(terminal.wait_for_end(), 0);
  EXPECT_THAT(run_ridge(args).err, Not(HasSubstr("prompt ["))) << "no terminal";
}

class PromptCacheTest : public testing::Test {
 protected:
  Outcome run(const std::string& prompt, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"-p", prompt, "--prompt-cache", file});
    return run_tiny_with(more);
  }
  const TempDir dir;
  const std::string file = (dir / "prompt.kv").native();
};

TEST_F(PromptCacheTest, TheLongestCommonBeginIsTakenAndTheTextIsTheSame) {
  const std::string whole = run_tiny_with({"-p", "Once upon a time there was"}).out;
  const Outcome first = run("Once upon a time");
  EXPECT_THAT(first.err, HasSubstr("does not exist yet"));
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"prompt.kv", "prompt.kv.ids"}));
  const Outcome longer = run("Once upon a time there was");
  EXPECT_THAT(longer.err, HasSubstr("prompt cache: 4 of 7 tokens"));
  EXPECT_EQ(longer.out, whole);
  const Outcome again = run("Once upon a time there was");
  EXPECT_THAT(again.err, HasSubstr("prompt cache: 6 of 7 tokens"));
  EXPECT_EQ(again.out, whole);
  const Outcome shorter = run("Once upon a time");
  EXPECT_THAT(shorter.err, HasSubstr("prompt cache: 4 of 5 tokens"));
  EXPECT_EQ(shorter.out, first.out);
  EXPECT_THAT(run("Once upon a time there was").err, HasSubstr("prompt cache: 6 of 7")) << "nothing was lost";
}

TEST_F(PromptCacheTest, WhatDoesNotFitIsSaidAndReplaced) {
  run("Once upon a time");
  const Outcome other = run("Once upon a time", {"--kv-quant", "rotor-3"});
  EXPECT_EQ(other.code, 0);
  EXPECT_THAT(other.err, HasSubstr("prompt cache: begins afresh: "));
  EXPECT_THAT(other.err, HasSubstr("format f16, this cache has rotor-3"));
  EXPECT_THAT(run("Once upon a time", {"--kv-quant", "rotor-3"}).err, HasSubstr("4 of 5 tokens"));
}

TEST_F(PromptCacheTest, DamagedOrMismatchedFilesAreNotUsed) {
  const std::string text = run("Once upon a time").out;
  const std::string ids = slurp(file + ".ids"), state = slurp(file);
  const auto afresh = [&](const char* why) {
    const Outcome outcome = run("Once upon a time");
    EXPECT_EQ(outcome.code, 0) << why;
    EXPECT_EQ(outcome.out, text) << why;
    EXPECT_THAT(outcome.err, HasSubstr("begins afresh")) << why;
  };
  dir.write("prompt.kv", state.substr(0, state.size() - 1));
  afresh("a state that was cut");
  run_tiny_with({"-p", "A dog", "--prompt-cache", (dir / "other.kv").native()});
  std::filesystem::copy_file(dir / "other.kv", file, std::filesystem::copy_options::overwrite_existing);
  afresh("another prompt's state");
  dir.write("prompt.kv.ids", std::string_view("{\"version\": 1, \"tokens\": [1, \"x\"]}"));
  afresh("ids that are none");
  std::filesystem::remove(file + ".ids");
  afresh("no ids");
  EXPECT_EQ(slurp(file + ".ids"), ids);
}

}  // namespace
}  // namespace ridge
