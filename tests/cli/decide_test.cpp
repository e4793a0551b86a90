// ridge plan and ridge decide on the shipped tiny model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include <nlohmann/json.hpp>

#include "cases/paths.h"
#include "cases/temp_dir.h"
#include "cli/run_program.h"
#include "lab/decide/record.h"

namespace ridge {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

TEST(Plan, CountsShowsAndChecks) {
  const Outcome outcome = run_ridge(
      words("plan -m synth:tiny-64@weights=q8_0 -c 1000 --sessions 2 --kv f16,rotor-3 --check --roof-gbs 10"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* text : {"| KV cache | f16 | rotor-3 |", "| fits | yes | yes |", "| KV K coded |",
                           "| tokens/s at most |", "| rotor-3 | planned | found |", "% of what was found"})
    EXPECT_THAT(outcome.out, HasSubstr(text));
  EXPECT_THAT(outcome.out, ContainsRegex("---: .\n. total .*\n. fits .*\n. largest context of 2 sessions .trained for"))
      << "what decides comes first";
  const Outcome no_bandwidth = run_ridge({"plan", "-m", kTinyModel});
  EXPECT_EQ(no_bandwidth.code, 0) << no_bandwidth.err;
  EXPECT_THAT(no_bandwidth.err, HasSubstr("ridge bench bandwidth"));
  EXPECT_THAT(no_bandwidth.out, Not(HasSubstr("tokens/s")));
  const json rows = json::parse(
      run_ridge({"plan", "-m", "synth:llama-3.1-70b", "-c", "8192", "--kv", "f16", "--memory-gib", "200", "--json"})
          .out);
  EXPECT_EQ(rows.at(0).at("fits"), true);
  EXPECT_GT(rows[0]["total_bytes"], int64_t(130) << 30);  // of which nothing was allocated
  EXPECT_TRUE(rows[0]["tokens_per_second"].is_null());
}

TEST(Plan, RefusesWhatDoesNotFitWithWhatWould) {
  const Outcome outcome =
      run_ridge(words("plan -m synth:llama-3.1-8b -c 131072 --sessions 4 --kv f16,q8_0 --memory-gib 20"));
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.out, HasSubstr("| fits | NO | NO |"));
  EXPECT_THAT(outcome.err, ContainsRegex("no plan fits in 20.00 GiB; what fits: f16: [0-9]+ tokens in 4 sessions"));
  EXPECT_EQ(run_ridge({"plan", "-m", kTinyModel, "--kv", "f17"}).code, 2);
  EXPECT_EQ(run_ridge({"plan", "-m", kTinyModel, "--roof-file", "no such file"}).code, 2);
  EXPECT_EQ(run_ridge({"plan", "-m", kTinyModel, "--device", "cuda"}).code, 6);
}

/// Words that make a decision take seconds.
std::vector<std::string> few_samples() {
  return words("--target-depths 256 --samples 5 --max-seconds 0.02 --roof-mib 16 -t 1 --eval-ctx 64 --chunks 1 -f {}",
               {RIDGE_SOURCE_DIR "/models/wikitext-2-excerpt.txt"});
}

/// A decision in seconds, with its rows in `store`.
std::vector<std::string> quick_decision(const std::string& model, const std::filesystem::path& store) {
  std::vector<std::string> args =
      words("decide -m {} -c 256 --candidates rotor-3 --results {} --depths 256 --prompts 40 -n 8 -r 5 --no-check",
            {model, store.native()});
  const std::vector<std::string> few = few_samples();
  args.insert(args.end(), few.begin(), few.end());
  return args;
}

TEST(Decide, WritesARecordThatAutoObeys) {
  const TempDir dir;
  const std::string model = RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf";
  const Outcome first = run_ridge(quick_decision(model, dir / "lab.jsonl"));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, ContainsRegex("1 (PASS|FAIL|NO VERDICT) +attention of"));
  EXPECT_THAT(first.err, Not(HasSubstr(" 0 rows measured")));
  const Outcome second = run_ridge(quick_decision(model, dir / "lab.jsonl"));
  EXPECT_THAT(second.err, HasSubstr(" 0 rows measured"));
  std::string record;
  for (const std::string& name : dir.names())
    if (name.starts_with("decision-")) record = (dir / name).native();
  ASSERT_NE(record, "");
  EXPECT_EQ(run_ridge({"decide", "--show", record}).out, second.out);
  EXPECT_EQ(run_ridge({"decide", "--show", record, "--json"}).out, slurp(record));
  const Outcome page = run_ridge({"decide", "--show", record, "--page", (dir / "page").native()});
  EXPECT_THAT(page.code, testing::AnyOf(0, 6)) << page.err;  // 6: no matplotlib
  if (page.code == 0) {
    EXPECT_THAT(slurp(dir / "page/decision.html"), HasSubstr("What to type"));
  }

  const auto auto_line = [&](const std::string& where, const std::string& of_model,
                             std::vector<std::string> more = {}) {
    std::vector<std::string> args =
        words("run -m {} -p One -n 2 -c 64 --temp 0 --kv-quant auto --decision {} -t 1", {of_model, where});
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = run_ridge(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const size_t at = outcome.err.find("auto     ");
    return at == std::string::npos ? outcome.err : outcome.err.substr(at, outcome.err.find('\n', at) - at);
  };
  for (const std::string& where : {dir.path().native(), record})
    EXPECT_THAT(auto_line(where, model),
                ContainsRegex("auto     (f16|rotor-3) for up to [0-9]+ tokens, by .*decision-"));
  EXPECT_THAT(auto_line(record, kTinyModel),
              ContainsRegex("auto     f16: .*for the model with hash .*ridge decide -m"));
  EXPECT_THAT(auto_line(record, model, {"-t", "2"}), HasSubstr("number of threads"));
  const Outcome chat =
      run_ridge({"chat", "-m", model, "-n", "2", "-c", "64", "-t", "1", "--kv-quant", "auto", "--decision", record},
                {.input = "Hello\n"});
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_THAT(chat.err, ContainsRegex("auto     (f16|rotor-3) for up to 64 tokens"));
  EXPECT_THAT(auto_line(dir.path().native(), kTinyModel), HasSubstr("auto     f16: there is no record"));
  std::string edited = slurp(record);
  edited.replace(edited.find("\"n_sessions\": 1"), 15, "\"n_sessions\": 2");
  const std::string lie = dir.write("edited.json", edited).native();
  EXPECT_THAT(auto_line(lie, model), HasSubstr("it was edited or cut"));
  EXPECT_EQ(run_ridge({"decide", "--show", lie}).code, 4);
}

/// What is asked without a file goes into the user's folder, where `auto` looks; the answer is in words.
TEST(Decide, QuicklyWithRowsInTheUsersFolder) {
  const TempDir dir;
  const RunOptions home{.env = {"XDG_DATA_HOME=" + dir.path().native()}};
  const std::string model = RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf";
  std::vector<std::string> args{"decide", "-m", model, "--quick", "-c", "256", "--candidates", "rotor-3"};
  const std::vector<std::string> few = few_samples();
  args.insert(args.end(), few.begin(), few.end());
  const Outcome first = run_ridge(args, home);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, ContainsRegex("to do    6 measurements of attention, about .*\n.*18 requests"));
  EXPECT_THAT(first.err, ContainsRegex("decide   about [0-9a-z]+ in all; rows go to .*/ridge/lab.jsonl"));
  EXPECT_THAT(first.err, ContainsRegex("\n +[0-9]+ s  .*rotor-3 pp128")) << "a line a step where stderr is a file";
  EXPECT_THAT(first.out, ContainsRegex("^(Use rotor-3|Stay with f16. Speed: )"));
  EXPECT_THAT(first.out, Not(HasSubstr("rows      ")));
  std::vector<std::string> again = args;
  again.insert(again.end(), {"--rows", "--again"});
  const Outcome second = run_ridge(again, home);
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("rows      "));
  const Outcome run =
      run_ridge({"run", "-m", model, "-p", "One", "-n", "2", "-c", "64", "-t", "1", "--kv-quant", "auto"}, home);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, ContainsRegex("auto     (f16|rotor-3) for up to [0-9]+ tokens, by .*/ridge/decision-"));
}

TEST(Decide, SearchesByLayerAndSideAndAutoTakesWhatARecordSays) {
  const TempDir dir;
  const std::string model = RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf";
  std::vector<std::string> args = quick_decision(model, dir / "lab.jsonl");
  args.insert(args.end(), {"--search", RIDGE_SOURCE_DIR "/docs/ARCHITECTURE.md", "--search-sides", "rotor-3",
                           "--search-chunks", "1", "--bits", "8", "--only-quality"});
  const Outcome outcome = run_ridge(args);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("search   on "));
  EXPECT_THAT(outcome.out, ContainsRegex("bits <= 8 +(PASS|FAIL|NO VERDICT) .*: mean KLD"));
  EXPECT_THAT(outcome.out, HasSubstr("1 NO VERDICT attention of"));
  EXPECT_THAT(slurp(dir / "lab.jsonl"), ContainsRegex("\"kind\":\"search_point\".*\"limit\":\"bits <= 8\""));

  // A record whose choice differs by layer and side.
  std::string path;
  for (const std::string& name : dir.names())
    if (name.starts_with("decision-")) path = (dir / name).native();
  lab::DecisionRecord record = lab::read_record(path).or_throw();
  record.choice = "rotor-3;0-1:q8_0/rotor-4;7:rotor-4/q8_0";
  lab::write_record(record, path);
  const std::string state = (dir / "state").native();
  const Outcome run = run_ridge(words(
      "run -m {} -p One -n 2 -c 64 --temp 0 -t 1 --kv-quant auto --decision {} --save-state {}", {model, path, state}));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("auto     rotor-3;0-1:q8_0/rotor-4;7:rotor-4/q8_0 for up to"));
  // The file of its session names the formats: another cache does not take it.
  const auto restored = [&](const char* kv) {
    return run_ridge(words("run -m {} -p {} -n 1 -c 64 --temp 0 -t 1 --kv-quant rotor-3 --kv-layers {} --load-state {}",
                           {model, " two", kv, state}));
  };
  EXPECT_EQ(restored("0-1:q8_0/rotor-4;7:rotor-4/q8_0").code, 0);
  const Outcome other = restored("0-1:q8_0/rotor-4;7:rotor-4/rotor-4");
  EXPECT_EQ(other.code, 4);
  EXPECT_THAT(other.err, HasSubstr("q8_0"));

  // Benches ask it once a test: f16 for shorter texts than those it is on for.
  record.from_depth = 100;
  lab::write_record(record, path);
  const std::vector<std::string> asks{"--kv", "q8_0,auto", "--decision", path, "-r", "1", "-t", "1", "--no-check"};
  std::vector<std::string> decode{"bench", "decode", "-m", model, "-p", "0", "-n", "2", "-d", "0,128", "-o", "jsonl"};
  decode.insert(decode.end(), asks.begin(), asks.end());
  const Outcome by_depth = run_ridge(decode);
  EXPECT_EQ(by_depth.code, 0) << by_depth.err;
  EXPECT_EQ(std::ranges::count(by_depth.out, '\n'), 4) << "two caches at two depths";
  EXPECT_THAT(by_depth.err, HasSubstr("auto     f16 for up to 2 tokens"));
  EXPECT_THAT(by_depth.err, HasSubstr("auto     rotor-3;0-1:q8_0/rotor-4;7:rotor-4/q8_0 for up to 130 tokens"));
  std::vector<std::string> batch{"bench", "batch", "-m", model, "-npp", "8,120", "-ntg", "4", "-npl", "2"};
  batch.insert(batch.end(), asks.begin(), asks.end());
  const Outcome by_length = run_ridge(batch);
  EXPECT_EQ(by_length.code, 0) << by_length.err;
  EXPECT_THAT(by_length.out, HasSubstr("\n| f16 | 8 | 4 | 2 |"));
  EXPECT_THAT(by_length.out, HasSubstr("\n| rotor-3;0-1:q8_0/rotor-4;7:rotor-4/q8_0 | 120 | 4 | 2 |"));
}

TEST(Plan, CountsADraftAndRefusesOneThatNobodyRuns) {
  const Outcome outcome =
      run_ridge(words("plan -m synth:tiny-64 -c 500 --kv f16 --spec-type draft --draft-model synth:tiny-64@layers=1 "
                      "--draft-kv-quant q8_0 --spec-depth 3 --check"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("draft KV . [0-9.]+ KiB"));
  EXPECT_THAT(outcome.out, HasSubstr("| draft weights |"));
  EXPECT_EQ(run_ridge({"plan", "-m", kTinyModel, "--draft-model", kTinyModel}).code, 2);
  EXPECT_EQ(run_ridge({"plan", "-m", kTinyModel, "--spec-type", "mtp"}).code, 2);
}

TEST(Decide, RefusesFlagsThatMakeNoSense) {
  const TempDir dir;
  const std::string store = (dir / "lab.jsonl").native();
  const auto refused = [&](std::vector<std::string> args, const char* why) {
    const Outcome outcome = run_ridge(args);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(why));
  };
  refused({"decide", "--results", store}, "--model: is required");
  refused({"decide", "-m", kTinyModel, "--results", store, "--candidates", "f16"}, "--candidates");
  refused({"decide", "-m", kTinyModel, "--results", store, "--candidates", "f17"}, "f17");
  refused({"decide", "-m", kTinyModel, "--results", store, "--search", kTinyModel}, "name that text with -f");
  refused({"decide", "-m", kTinyModel, "--results", store, "-f", kTinyModel, "--search", kTinyModel, "--bits", "3,x"},
          "--bits");
  refused({"decide", "-m", kTinyModel, "--results", store, "-f", kTinyModel, "--search", kTinyModel, "--bits", ""},
          "a search needs a limit");
  refused(words("decide -m {} --results {} -f {} --search {} --search-sides f32",
                {kTinyModel, store, kTinyModel, kTinyModel}),
          "--search-sides");
  refused({"decide", "--page", store}, "add --show RECORD");
  refused(
      {"decide", "-m", kTinyModel, "--results", store, "-c", "64", "--prompts", "60", "-n", "8", "--candidates", "f32"},
      "do not fit into a context of 64");
  refused({"run", "-m", kTinyModel, "-p", "a", "--kv-quant", "auto", "-ctk", "q8_0"}, "auto chooses the whole cache");
  refused({"run", "-m", kTinyModel, "-p", "a", "--kv-quant", "auto", "--prompt-cache", store}, "--kv-quant");
  refused({"eval", "ppl", "-m", kTinyModel, "-f", kTinyModel, "--kv-quant", "auto"}, "auto");
  refused({"bench", "decode", "-m", kTinyModel, "--kv", "auto,f16,auto"}, "in the list twice");
  refused({"bench", "decode", "-m", kTinyModel, "--kv", "auto", "--spec-type", "lookup", "--force-accept", "1"},
          "does not go with --spec-type");
  EXPECT_EQ(dir.names().size(), 0u);
}

}  // namespace
}  // namespace ridge
