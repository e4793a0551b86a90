// What the program does where something is missing: memory, disk, finite numbers, or work that Ctrl-C could cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "base/interrupt.h"
#include "base/limits.h"
#include "cases/damaged_model.h"
#include "cli/options.h"
#include "cli/run_program.h"
#include "engine/engine.h"
#include "engine/kv_options.h"
#include "ridge/error.h"

namespace ridge {
namespace {

using testing::HasSubstr;
using testing::Not;

/// The program under limits of a shell.
Outcome under(const std::string& limits, const std::string& args, RunOptions options = {}) {
  const std::string command = limits + "; exec " + options.program + " " + args;
  options.program = "/bin/sh";
  return run_ridge({"-c", command}, options);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these reserve address space of their own
constexpr const char* kTwoGib = "ulimit -v 2097152";

TEST(Memory, AContextThatDoesNotFitIsRefusedWithOneThatDoes) {
  const std::string run = std::string("run -m ") + kTinyModel + " -p Once -n 4 --temp 0";
  const Outcome refused = under(kTwoGib, run + " -c 67108864");
  EXPECT_EQ(refused.code, 5) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("--ctx-size: a context of 67108864 tokens needs a KV cache of"));
  const size_t at = refused.err.find("at most ");
  ASSERT_NE(at, std::string::npos) << refused.err;
  const int fitting = std::stoi(refused.err.substr(at + 8));
  EXPECT_GT(fitting, 100000);
  // Half of it: what the process takes besides is not the same each time.
  EXPECT_EQ(under(kTwoGib, run + " -c " + std::to_string(fitting / 2)).code, 0) << fitting;
  EXPECT_EQ(under(kTwoGib, run).code, 0);
}

TEST(Memory, AServersContextBecomesWhatAQuarterHolds) {
  const std::string serve = std::string("serve -m ") + kTinyModel + " --port 0 --json --quiet -t 1 ";
  const TempDir directory;
  const std::string out = (directory.path() / "out").string();
  const auto end_when_ready = [&](pid_t pid) {
    for (int i = 0; i < 3000 && !slurp(out).ends_with('\n'); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    kill(pid, SIGTERM);
  };
  const Outcome outcome = under(kTwoGib, serve + "-c 67108864", {.out_path = out, .while_running = end_when_ready});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("warning: the context is "));
  EXPECT_THAT(outcome.err, Not(HasSubstr("after the work was done"))) << "a server ends so";
  const auto start = nlohmann::json::parse(slurp(out));
  const int64_t available = start["available_bytes"], cache = start["kv_bytes"];
  EXPECT_LE(available, int64_t(2) << 30);
  EXPECT_GT(cache, available / 40) << "threads take addresses too";
  EXPECT_LE(cache, available / 4);
  EXPECT_GT(start["n_ctx"].get<int>(), 100000);
}

TEST(Memory, PlanAndInfoSayTheSameNumber) {
  const Outcome info = under(kTwoGib, "info --json"),
                plan = under(kTwoGib, std::string("plan --json -m ") + kTinyModel);
  const int64_t by_info = nlohmann::json::parse(info.out)["machine"]["available_bytes"];
  const int64_t by_plan = nlohmann::json::parse(plan.out)[0]["memory_bytes"];
  EXPECT_NEAR(double(by_info), double(by_plan), 0.1 * double(by_info));
}

TEST(Memory, WeightsThatDoNotFitAreRefused) {
  const Outcome outcome = under(kTwoGib, "run -m synth:llama-3.1-8b@weights=q8_0 --prompt-ids 1 -n 1");
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("cannot load the model"));
}
#endif

TEST(Memory, TheContextThatFitsIsTheLongestOne) {
  const Model model = Model::load(kTinyModel);
  const auto layers = layer_configs({.k = {.format = "f16"}, .v = {.format = "f16"}}, model.engine().plan());
  const auto bytes = [&](int n) { return cache_bytes(layers, false, pool_pages(layers, n, 1, 512), 1); };
  for (const int n : {128, 1024, 128 * 77}) {
    EXPECT_EQ(context_that_fits(layers, false, 1 << 20, 512, bytes(n)), n);
    EXPECT_EQ(context_that_fits(layers, false, 1 << 20, 512, bytes(n) - 1), n - 128);
    EXPECT_EQ(context_that_fits(layers, false, n - 5, 512, bytes(n)), n - 5) << "all that was asked for";
  }
  EXPECT_EQ(context_that_fits(layers, false, 1024, 512, 0), 0);
}

TEST(Threads, MoreThanProcessorsAreSaid) {
  const std::string n = std::to_string(affine_processors() + 1);
  const Outcome outcome = run_ridge({"run", "-m", kTinyModel, "-p", "a", "-n", "1", "-t", n, "-c", "64"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, testing::ContainsRegex(n + " threads on [0-9]+ processor"));
}

TEST(NotFinite, CommandsEndWithStatus4AndTheTensor) {
  const TempDir directory;
  const std::string model = damaged_model(directory, "blk.1.ffn_up.weight", 70),
                    text = directory.write("text.txt", std::string(600, 'a')).native();
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"run", "-m", model, "-p", "Once", "-n", "5"},
        {"run", "-m", model, "-p", "Once", "-n", "5", "--temp", "0", "--json"},
        {"run", "-m", model, "-p", "Once", "-n", "5", "--spec-type", "lookup"},
        {"bench", "decode", "-m", model, "-p", "0", "-n", "8", "-r", "1", "--no-check"},
        {"bench", "batch", "-m", model, "-npp", "16", "-ntg", "4", "-npl", "2", "--no-check"}}) {
    const Outcome outcome = run_ridge(args);
    EXPECT_EQ(outcome.code, 4) << args[0] << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("the model's logits are not finite")) << args[0];
    if (args[0] == "run") {
      EXPECT_THAT(outcome.err, HasSubstr("blk.1.ffn_up.weight has nan in row 1"));
      EXPECT_EQ(outcome.out, "");
    }
  }
  for (const std::string study : {"ppl", "kld"}) {
    const Outcome eval = run_ridge({"eval", study, "-m", model, "-f", text, "-c", "64"});
    EXPECT_EQ(eval.code, 4) << study << eval.err;
    EXPECT_THAT(eval.err, HasSubstr("logits are not finite"));
    EXPECT_THAT(eval.out, Not(HasSubstr("nan"))) << study;
  }
  const Outcome named = run_ridge({"run", "-m", model, "-p", "Once", "-n", "5", "--check-finite"});
  EXPECT_EQ(named.code, 4);
  EXPECT_THAT(named.err, HasSubstr("the feed-forward of layer 1 is the first to give nan; blk.1.ffn_up.weight has"));
  EXPECT_EQ(run_ridge({"run", "-m", kTinyModel, "-p", "Once", "-n", "5", "--check-finite"}).code, 0);
}

TEST(Disk, APromptCacheThatCannotBeWrittenCostsNoAnswer) {
  const TempDir directory;
  std::string prompt;
  for (int i = 0; i < 22; ++i) prompt += "Once upon a time ";  // a state of some ten KiB
  const std::string run = std::string("run -m ") + kTinyModel + " -p '" + prompt + "' -n 8 --temp 0 --quiet",
                    file = (directory.path() / "p.kv").string();
  const std::string full = "trap '' XFSZ; ulimit -f 16";  // files of 8 or 16 KiB
  const Outcome plain = under("true", run), outcome = under(full, run + " --prompt-cache " + file);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, plain.out);
  EXPECT_THAT(outcome.err, HasSubstr("warning: prompt cache: nothing was kept: "));
  EXPECT_FALSE(std::filesystem::exists(file));
  const Outcome state = under(full, run + " --json --save-state " + file);
  EXPECT_EQ(state.code, 1) << "what was asked for is not there";
  EXPECT_THAT(state.out, HasSubstr("\"text\"")) << "the answer is";
}

TEST(ContextFlags, ABatchSizeLimitsTheDefaultToo) {
  const Model model = Model::load("synth:tiny");
  cli::ContextFlags flags;
  EXPECT_EQ(flags.ubatch(model.engine().default_ubatch()), 512);
  flags.n_batch = 256;
  EXPECT_EQ(flags.ubatch(model.engine().default_ubatch()), 256);
  flags.n_ubatch = 64;
  EXPECT_EQ(flags.ubatch(model.engine().default_ubatch()), 64);
  flags.n_ubatch = 300;
  EXPECT_EQ(flags.ubatch(model.engine().default_ubatch()), 256);
}

TEST(InterruptDeathTest, OneThatComesAfterTheWorkSaysSo) {
  const auto child = [](bool done) {
    install_interrupt_handler();
    raise(SIGINT);
    if (!interrupted()) _exit(1);
    _exit(exit_code_of(done));
  };
  EXPECT_EXIT(child(true), testing::ExitedWithCode(0), "after the work was done: nothing is missing");
  EXPECT_EXIT(child(false), testing::ExitedWithCode(130), "ending cleanly");
  EXPECT_EQ(exit_code_of(true), 0) << "nobody interrupted";
}

}  // namespace
}  // namespace ridge
