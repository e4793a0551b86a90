// eval matrix, and base files of eval kld, as a user starts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/program.h"

namespace ridge {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class EvalCommands : public testing::Test {
 protected:
  EvalCommands() {
    std::string story;
    for (int i = 0; i < 12; ++i) story += "Once upon a time, there was a little girl named Lily. She loved the park. ";
    text_ = dir_.write("story.txt", story).native();
  }
  Outcome eval(std::vector<std::string> more) {
    std::vector<std::string> args{"eval", more[0], "-m", kTinyModel, "-c", "64", "--chunks", "2"};
    args.insert(args.end(), more.begin() + 1, more.end());  // of a flag given twice the last one counts
    return run_ridge(args);
  }

  TempDir dir_;
  std::string text_;
};

TEST_F(EvalCommands, MatrixPrintsATableAndStoresARowPerCache) {
  const std::string results = (dir_ / "r.jsonl").native();
  const Outcome outcome = eval({"matrix", "-f", text_, "--kv", "f32,rotor-3", "--group", "2", "--results", results});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("| f16 |"));  // the control row comes by itself
  EXPECT_THAT(outcome.out, HasSubstr("| rotor-3 |"));
  EXPECT_THAT(outcome.out, HasSubstr("(gate +0.25)"));
  std::istringstream lines(slurp(results));
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) EXPECT_EQ(json::parse(line)["kind"], "eval_kld");
  EXPECT_EQ(n, 3);
}

TEST_F(EvalCommands, MatrixJsonlHasOneRowPerLine) {
  const Outcome outcome = eval({"matrix", "-f", text_, "--kv", "f16,f32", "-o", "jsonl", "--quiet"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  std::istringstream lines(outcome.out);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(json::parse(line)["kv"], "f16");
  EXPECT_EQ(eval({"matrix", "-f", text_, "--kv", "f16", "-o", "html"}).code, 2);
}

TEST_F(EvalCommands, ABaseFileReplacesTextAndBaseRun) {
  const std::string base = (dir_ / "base.kld").native();
  ASSERT_EQ(eval({"kld", "-f", text_, "--kv", "f32", "--save-base", base}).code, 0);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"-f", text_}, {"--kl-divergence-base", base}}) {
    std::vector<std::string> args{"kld", "--base", base, "--kv", "f32", "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = eval(args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json rows = json::parse(outcome.out);
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0]["kv"], "f16");
    EXPECT_EQ(rows[0]["base"], "file base.kld");
    EXPECT_NEAR(rows[0]["kld"]["mean"]["value"], 0, 1e-5);
  }
}

TEST_F(EvalCommands, ABaseThatDoesNotFitIsRefused) {
  const std::string base = (dir_ / "base.kld").native();
  ASSERT_EQ(eval({"kld", "-f", text_, "--save-base", base}).code, 0);
  const auto refused = [&](std::vector<std::string> args, int code, const char* why) {
    args.insert(args.begin(), "kld");
    const Outcome outcome = eval(args);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(why));
  };
  refused({"-c", "32", "--base", base}, 2, "made with");
  refused({"--base", base, "--save-base", base}, 2, "--save-base");
  refused({"--base", base, "-f", dir_.write("other.txt", "Another story altogether.").native()}, 2, "tokens");
  refused({"--base", "none.kld", "-f", text_}, 2, "no cache and no file");
  refused({"--base", dir_.write("cut.kld", slurp(base).substr(0, 1000)).native()}, 4, "cut.kld");
  refused({}, 2, "--file");
}

TEST_F(EvalCommands, TheCurveCoversTheWindow) {
  const Outcome outcome = eval({"kld", "-f", text_, "--kv", "f32", "--curve", "--quiet"});
  EXPECT_THAT(outcome.out, HasSubstr("mean KLD at"));
  EXPECT_THAT(outcome.out, HasSubstr("0 to 3 "));
}

/// The studies have no --chunks and share their ends: a table, a row per cache, an interrupted or refused run.
TEST_F(EvalCommands, StudiesPrintATableAndStoreARowPerCache) {
  struct Case {
    std::vector<std::string> args;
    const char* column;
  };
  for (const Case& c : {Case{{"divergence", "--prompts", "2", "--prompt-tokens", "16", "-n", "8"}, "| identical |"},
                        Case{{"needle", "-c", "128", "--trials", "1", "--depths", "2", "--needle", "8", "--cue", "4"},
                             "| depth 100 % |"},
                        Case{{"attention", "-c", "32", "--windows", "1", "--queries", "4"}, "| norm ratio |"}}) {
    const std::string results = (dir_ / (c.args[0] + ".jsonl")).native();
    std::vector<std::string> args{"eval"};
    args.insert(args.end(), c.args.begin(), c.args.end());
    for (const std::string& arg : {std::string("-m"), std::string(kTinyModel), std::string("-f"), text_,
                                   std::string("--kv"), std::string("f16,f32"), std::string("--results"), results})
      args.push_back(arg);
    const Outcome outcome = run_ridge(args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr(c.column));
    EXPECT_THAT(outcome.out, HasSubstr("| f32 |"));
    std::istringstream lines(slurp(results));
    int n = 0;
    for (std::string line; std::getline(lines, line); ++n) {
      const json row = json::parse(line);
      EXPECT_EQ(row["kind"], "eval_" + c.args[0]);
      for (const char* field : {"kv", "model", "device", "build_commit", "command", "corpus_xxh64"})
        EXPECT_TRUE(row.contains(field)) << field;
    }
    EXPECT_EQ(n, 2);
  }
}

}  // namespace
}  // namespace ridge
