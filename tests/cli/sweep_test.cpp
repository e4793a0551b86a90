// ridge sweep and compare through the program: resumed, interrupted, killed, and with files that hold no rows.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "cli/run_program.h"

namespace ridge {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// Sweeps in a directory of their own.
struct Lab {
  TempDir dir;
  std::string store = (dir / "lab.jsonl").native();

  std::string spec(int n_batches) const {
    std::string batches = "1";
    for (int i = 2; i <= n_batches; ++i) batches += fmt::format(",{}", i);
    const std::string text = fmt::format(
        R"({{"samples":5,"max_seconds":0.05,"roof_mib":16,"grids":[{{"bench":"gemv","shapes":["64x128"],"batch":[{}],)"
        R"("weights":["f32","f16"]}}]}})",
        batches);
    return dir.write(fmt::format("spec{}.json", n_batches), text).native();
  }
  Outcome sweep(const std::string& spec, const RunOptions& options = {}) const {
    return run_ridge({"sweep", spec, "--results", store, "-t", "1", "--isa", "scalar", "--baseline", "f32"}, options);
  }
  std::vector<std::string> rows() const {
    std::vector<std::string> lines;
    std::ifstream file(store);
    for (std::string line; std::getline(file, line) && !file.eof();) lines.push_back(line);  // a last line may grow yet
    return lines;
  }
};

TEST(SweepCommand, StoresRowsPrintsCrossoversAndRepeatsNothing) {
  const Lab lab;
  const Outcome first = lab.sweep(lab.spec(2));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("| gemv 64x128, batch 2, f32, again |"));
  EXPECT_THAT(first.out, HasSubstr(" on gemv 64x128 ("));
  const std::vector<std::string> rows = lab.rows();
  ASSERT_EQ(rows.size(), 6u);
  const json row = json::parse(rows[1]);
  EXPECT_EQ(row["kind"], "op");
  EXPECT_EQ(row["checked"], true);
  EXPECT_EQ(row["cell"]["format"], "f16");
  EXPECT_EQ(row["n_threads"], 1);

  const Outcome again = lab.sweep(lab.spec(2));
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.err, HasSubstr("6 cells, 6 stored, 0 to measure"));
  EXPECT_EQ(lab.rows(), rows);
  const Outcome more = lab.sweep(lab.spec(3));
  EXPECT_EQ(more.code, 0);
  EXPECT_THAT(more.err, HasSubstr("9 cells, 6 stored, 3 to measure"));
  const std::vector<std::string> larger = lab.rows();
  ASSERT_EQ(larger.size(), 9u);
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), larger.begin()));

  const Outcome crossovers =
      run_ridge({"sweep", "--crossovers", "--results", lab.store, "--json", "--baseline", "f32"});
  ASSERT_EQ(crossovers.code, 0) << crossovers.err;
  const json found = json::parse(crossovers.out);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0]["points"].size(), 3u);
  EXPECT_EQ(found[0]["points"][0]["n_samples"], json::parse("[5,5,5]"));
  const Outcome none = run_ridge({"sweep", "--crossovers", "--results", lab.store, "--baseline", "q8_0"});
  EXPECT_EQ(none.code, 0);
  EXPECT_THAT(none.err, HasSubstr("no crossovers"));
}

TEST(SweepCommand, CtrlCKeepsWhatIsDoneAndTheNextRunGoesOn) {
  const Lab lab;
  const std::string spec = lab.spec(400);
  const Outcome stopped = lab.sweep(spec, {.while_running = [&](pid_t pid) {
                                      for (int i = 0; i < 2000 && lab.rows().size() < 3; ++i)
                                        std::this_thread::sleep_for(std::chrono::milliseconds(10));
                                      kill(pid, SIGINT);
                                    }});
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("the same command goes on from here"));
  const std::vector<std::string> rows = lab.rows();
  EXPECT_GE(rows.size(), 3u);
  EXPECT_LT(rows.size(), 1200u);
  for (const std::string& row : rows) EXPECT_EQ(json::parse(row)["samples_us"].size(), 5u);
}

TEST(SweepCommand, AKilledSweepLeavesAReadableStoreAndGoesOn) {
  const Lab lab;
  const Outcome killed = lab.sweep(lab.spec(400), {.while_running = [&](pid_t pid) {
                                     for (int i = 0; i < 2000 && lab.rows().size() < 3; ++i)
                                       std::this_thread::sleep_for(std::chrono::milliseconds(10));
                                     kill(pid, SIGKILL);
                                   }});
  EXPECT_EQ(killed.code, 128 + SIGKILL);
  const std::vector<std::string> rows = lab.rows();
  ASSERT_GE(rows.size(), 3u);
  const Outcome on = lab.sweep(lab.spec(2));
  EXPECT_EQ(on.code, 0) << on.err;
  const std::vector<std::string> after = lab.rows();
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), after.begin()));
  EXPECT_GE(after.size(), 6u);
}

TEST(SweepCommand, ADryRunListsCellsAndTouchesNothing) {
  const Lab lab;
  const Outcome plan = run_ridge({"sweep", lab.spec(3), "--dry-run", "--results", lab.store});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("| gemv 64x128, batch 3, f16 | "));
  EXPECT_THAT(plan.out, HasSubstr("9 cells, 0 stored, 9 to measure, about "));
  EXPECT_FALSE(std::filesystem::exists(lab.store));
  const json all = json::parse(run_ridge({"sweep", "decode", "--dry-run", "--json"}).out);
  EXPECT_EQ(all["to_measure"], all["cells"].size());
  for (const json& cell : all["cells"]) {
    EXPECT_GT(cell["bytes"], 1e8);
    EXPECT_GT(cell["seconds"], 0);
  }
}

TEST(SweepCommand, WrongFilesAndFlagsAreRefused) {
  const Lab lab;
  const auto refused = [](std::vector<std::string> args, int code, const std::string& says) {
    args.insert(args.begin(), "sweep");
    const Outcome outcome = run_ridge(args);
    EXPECT_EQ(outcome.code, code) << says;
    EXPECT_THAT(outcome.err, HasSubstr(says));
  };
  const std::string spec = lab.spec(1), text = lab.dir.write("text", "SQLite format 3\n").native(),
                    rows = lab.dir.write("rows.jsonl", "{}\n[]\n").native();
  refused({}, 2, "SPEC: is required (a file, or one of quick regime large depth decode)");
  refused({spec}, 2, "--results: is required");
  refused({"regim", "--results", lab.store}, 2, "neither a file nor a sweep that ships");
  refused({spec, "--results", text}, 2, "does not begin with a row");
  EXPECT_EQ(slurp(text), "SQLite format 3\n");
  refused({spec, "--results", rows}, 4, "line 2 is not a JSON object");
  refused({lab.dir.write("empty.json", "{}\n").native(), "--results", lab.store}, 4, "'grids'");
  refused({lab.dir.write("bad.json", "{\"grids\":[").native(), "--results", lab.store}, 4, "bad.json");
  refused({"--crossovers"}, 2, "--results: is required");
  refused({spec, "--crossovers", "--results", lab.store}, 2, "leave out SPEC");
  refused({"--crossovers", "--results", lab.store}, 2, "no such file");
  refused({spec, "--results", lab.store, "--device", "cpu,tpu"}, 2, "tpu");
  refused({spec, "--results", lab.store, "--budget", "x"}, 2, "--budget");
  EXPECT_FALSE(std::filesystem::exists(lab.store));
}

TEST(CompareCommand, MeasuresAAgainAndJudges) {
  const TempDir dir;
  const std::string results = (dir / "rows.jsonl").native();
  const std::vector<std::string> args =
      words("compare --op gemv --shape 64x128 -r 5 -t 1 --isa scalar --results {}", {results});
  std::vector<std::string> same = args, other = args;
  same.push_back("--json");
  const Outcome aa = run_ridge(same);
  ASSERT_EQ(aa.code, 0) << aa.err;
  const json verdict = json::parse(aa.out);
  EXPECT_EQ(verdict["kind"], "compare");
  EXPECT_EQ(verdict["n_samples"], json::parse("[5,5,5]"));
  EXPECT_GE(verdict["noise"], 0);
  EXPECT_EQ(verdict["b"]["weight_format"], "f16");
  other.insert(other.end(), {"--against", "q8_0"});
  const Outcome ab = run_ridge(other);
  ASSERT_EQ(ab.code, 0) << ab.err;
  EXPECT_THAT(ab.out, HasSubstr("B (q8_0 "));
  EXPECT_THAT(ab.out, testing::ContainsRegex("(FASTER|SLOWER|NO VERDICT): "));
  std::istringstream rows(slurp(results));
  std::string line;
  int n_rows = 0;
  for (; std::getline(rows, line); ++n_rows) EXPECT_EQ(json::parse(line)["kind"], "compare");
  EXPECT_EQ(n_rows, 2);
}

TEST(CompareCommand, WrongFlagsAreRefused) {
  const auto refused = [](std::vector<std::string> args, const std::string& says) {
    args.insert(args.begin(), "compare");
    const Outcome outcome = run_ridge(args);
    EXPECT_EQ(outcome.code, 2) << says;
    EXPECT_THAT(outcome.err, HasSubstr(says));
  };
  refused({"--op", "gemm"}, "expects gemv, attention or append");
  refused({"--shape", "1x2,3x4"}, "one shape");
  refused({"--shape", "64x100", "--against", "q8_0"}, "groups 32 inputs");
  refused({"--against", "f99"}, "f99");
  refused({"--op", "attention", "--against", "zz"}, "zz");
  refused({"--shape", "64x128", "--against-kernel", "nothing"}, "no kernel 'nothing'");
  refused({"-r", "4"}, "--repeat: expects a whole number from 5");
}

}  // namespace
}  // namespace ridge
