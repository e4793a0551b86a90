// The commands on the shipped tiny model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "cases/paths.h"
#include "cases/temp_dir.h"
#include "cli/run_program.h"

namespace ridge {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

const std::string kStory =
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big red "
    "ball. She wanted to play with it, but it was too high. Her mom said, \"Lily, let's go to the park.\" Lily was sad "
    "and "
    "didn't know what to do. She said, \"I want to play with your ball, but I can't find it.\" ";

std::vector<std::string> greedy(std::vector<std::string> more) {
  std::vector<std::string> args{"run", "-m", kTinyModel, "--temp", "0", "-p", "Once upon a time"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(Run, GreedyTextGoesToStdoutAndFactsToStderr) {
  const Outcome outcome = run_ridge(greedy({"-n", "20"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("there was a little"));
  for (const char* fact :
       {"model    llama (llama), CPU", "cache    f16: 640 bytes/token (f16: 640, ratio 1.00), context",
        "prompt   5 tokens, plain text; greedy", "prefill ", "decode ", "stopped  token limit"})
    EXPECT_THAT(outcome.err, HasSubstr(fact));
  const auto start_of = [](const Outcome& of) { return of.err.substr(0, of.err.find("prefill")); };
  EXPECT_EQ(std::ranges::count(start_of(outcome), '\n'), 3);
  const std::string all = start_of(run_ridge(greedy({"-n", "20", "--verbose"})));
  for (const char* fact : {"shape    5 layers", "device ", "weights ", "cache    K f16 (16 bits)", "kernels  "})
    EXPECT_THAT(all, HasSubstr(fact));
  EXPECT_THAT(run_ridge(greedy({"-n", "1"})).err, Not(HasSubstr("decode "))) << "nothing was decoded";
}

TEST(Run, StatisticsBeginALineWhereverTextAndStatisticsMeet) {
  const Outcome one = run_ridge(greedy({"-n", "4"}), {.one_output = true});
  EXPECT_THAT(one.out, ContainsRegex("there was a\nprefill  5 tokens"));
  const Outcome two = run_ridge(greedy({"-n", "4"}));
  EXPECT_THAT(two.out, testing::EndsWith("there was a")) << "stdout alone holds the text alone";
  EXPECT_THAT(two.err, ContainsRegex("greedy\nprefill "));
  const Outcome quiet = run_ridge(greedy({"-n", "4", "--quiet"}), {.one_output = true});
  EXPECT_EQ(quiet.out, two.out);
}

TEST(Run, QuietSaysNothingButTheText) {
  const Outcome outcome = run_ridge(greedy({"-n", "5", "--quiet"}));
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out, "");
}

TEST(Run, GreedyIsTheSameForAnyThreadsBatchAndFlagSpelling) {
  const std::string text = run_ridge(greedy({"-n", "40", "--quiet"})).out;
  EXPECT_EQ(run_ridge(greedy({"-n", "40", "--quiet", "-t", "1"})).out, text);
  EXPECT_EQ(run_ridge(greedy({"-n", "40", "--quiet", "-ub", "2"})).out, text);
  EXPECT_EQ(run_ridge(greedy({"--n_predict", "40", "--quiet", "--top_k=7"})).out, text);
}

TEST(Run, SpeculationLeavesTheTextAndCountsWhatItDid) {
  for (const char* temperature : {"0", "0.8"}) {
    const std::vector<std::string> flags{"-n", "150", "--temp", temperature, "--seed", "3"};
    const std::string text = run_ridge(greedy(flags)).out;
    for (std::vector<std::string> spec :
         {std::vector<std::string>{"--spec-type", "lookup"},
          {"--spec-type", "draft", "-md", kTinyModel, "--draft-kv-quant", "rotor-3"},
          {"--spec-type", "draft", "-md", kTinyModel, "--kv_quant_draft", "rotor-3", "-ctkd", "f16",
           "--spec-draft-type-v", "rotor-4", "--spec-draft-n-max", "4", "--spec-draft-p-min", "0.3"}}) {
      spec.insert(spec.end(), flags.begin(), flags.end());
      const Outcome outcome = run_ridge(greedy(spec));
      EXPECT_EQ(outcome.out, text) << outcome.err;
      EXPECT_THAT(outcome.err,
                  ContainsRegex("spec     (lookup|draft): [0-9]+ steps, [0-9]+ proposed, [0-9]+ accepted"));
      spec.emplace_back("--json");
      const json row = json::parse(run_ridge(greedy(spec)).out);
      EXPECT_EQ(row["text"], text);
      EXPECT_EQ(row["spec_type"], spec[1]);
      EXPECT_EQ(row["spec_steps"].get<int>() + row["spec_accepted"].get<int>(), row["n_decoded"]) << row;
    }
  }
  const Outcome other = run_ridge(words("run -m {} -p a -c 64 --spec-type draft -md {}",
                                        {RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf", kTinyModel}));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("a draft model must have the target's vocabulary"));
}

TEST(Run, LayersOfTheirOwnAreShownReadBackFromTheCache) {
  const Outcome outcome =
      run_ridge(greedy({"-n", "5", "--kv-quant", "rotor-3", "--kv-layers", "0,4:f16;2:i8r/rotor-4", "--verbose"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("cache    layers 0,4: K f16 (16 bits), V f16 (16 bits)\n"));
  EXPECT_THAT(outcome.err, HasSubstr("cache    layers 1,3: K rotor-3 "));
  EXPECT_THAT(outcome.err, HasSubstr("cache    layers 2: K i8r absmax (10 bits), V rotor-4"));
}

TEST(Run, ALatentRowIsKAndV) {
  const Outcome outcome =
      run_ridge(words("run -m synth:tiny-latent --prompt-ids 5,6,7 -n 4 -ctk q8_0 -ctv q8_0 --verbose"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("cache    one row for K and V, q8_0 absmax (8.5 bits)"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("(0 bits)")));
}

TEST(Run, ASavedCacheGoesOnWithTheNextPrompt) {
  const TempDir dir;
  const std::string state = (dir / "state.kv").native();
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> args = words("run -m {} --temp 0 -c 200 --kv-quant rotor-3:window=32 -n 30", {kTinyModel});
    args.insert(args.end(), more.begin(), more.end());
    return run_ridge(args);
  };
  const Outcome first = run({"-p", "Once upon a time", "--save-state", state});
  ASSERT_EQ(first.code, 0) << first.err;
  const Outcome second = run({"-p", " Then she", "--load-state", state, "--save-state", state});
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.out, Not(testing::IsEmpty()));
  EXPECT_NE(second.out, run({"-p", " Then she"}).out) << "the story before matters";
  EXPECT_THAT(first.err, HasSubstr("cache    35 of 200")) << first.err;
  const Outcome other = run({"-p", "x", "--load-state", state, "--kv-window", "64"});
  EXPECT_EQ(other.code, 4);
  EXPECT_THAT(other.err, HasSubstr("K of layer 0: window 32, this cache has 64"));
}

TEST(Run, SeedsRepeatAndDiffer) {
  const auto text = [](const std::string& seed) {
    return run_ridge({"run", "-m", kTinyModel, "-p", "Once", "-n", "60", "--quiet", "--temp", "1.5", "--seed", seed})
        .out;
  };
  EXPECT_EQ(text("7"), text("7"));
  EXPECT_NE(text("7"), text("8"));
}

TEST(Run, ARandomSeedIsPrinted) {
  const Outcome outcome = run_ridge({"run", "-m", kTinyModel, "-p", "Once", "-n", "2"});
  EXPECT_THAT(outcome.err, testing::ContainsRegex("seed [0-9]+"));
}

TEST(Run, PromptsComeFromFilesAndStdin) {
  TempDir dir;
  const std::string file = dir.write("prompt.txt", "Once upon a time").native();
  const std::string text = run_ridge(greedy({"-n", "10", "--quiet"})).out;
  EXPECT_EQ(run_ridge({"run", "-m", kTinyModel, "--temp", "0", "-n", "10", "--quiet", "-f", file}).out, text);
  EXPECT_EQ(run_ridge({"run", "-m", kTinyModel, "--temp", "0", "-n", "10", "--quiet", "-f", "-"},
                      {.input = "Once upon a time"})
                .out,
            text);
  // A pipe with a name, whose writer comes later.
  const std::string pipe = (dir / "pipe").native();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] {
    std::ofstream out(pipe);
    out << "Once upon " << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    out << "a time\n";
  });
  EXPECT_EQ(run_ridge({"run", "-m", kTinyModel, "--temp", "0", "-n", "10", "--quiet", "-f", pipe}).out, text);
  writer.join();
}

TEST(Run, AnEmptyPromptStartsFromBos) {
  const Outcome outcome = run_ridge({"run", "-m", kTinyModel, "-p", "", "-n", "5", "--temp", "0", "--quiet"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(Run, PromptTextThatLooksLikeAFlagIsText) {
  const Outcome outcome = run_ridge({"run", "-m", kTinyModel, "-n", "1", "--json", "-p", "--top_k"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_GT(json::parse(outcome.out)["n_prompt"], 3);
}

TEST(Run, StopStringsEndBeforeTheyAppear) {
  const Outcome outcome = run_ridge(greedy({"-n", "60", "--stop", "zzz", "--stop", "little"}));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, Not(HasSubstr("little")));
  EXPECT_THAT(outcome.err, HasSubstr("stop string 'little'"));
}

TEST(Run, AFullContextEndsWithAMessage) {
  const Outcome outcome = run_ridge(greedy({"-c", "16", "--ignore-eos"}));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("context full: all 16 tokens"));
}

TEST(Run, APromptThatFillsTheContextIsRefused) {
  const Outcome outcome = run_ridge(greedy({"-c", "5"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("raise --ctx-size"));
}

TEST(Run, JsonHoldsTextAndStatistics) {
  const Outcome outcome = run_ridge(greedy({"-n", "8", "--json", "--quiet"}));
  const json row = json::parse(outcome.out);
  EXPECT_EQ(row["text"].get<std::string>(), run_ridge(greedy({"-n", "8", "--quiet"})).out);
  EXPECT_EQ(row["tokens"].size(), 8u);
  EXPECT_GT(row["decode_tok_s"], 0);
  EXPECT_THAT(row["provenance"]["command"].get<std::string>(), HasSubstr("ridge run"));
}

TEST(Run, TheEnvironmentSetsFlagsAndTheCommandLineWins) {
  const Outcome from_env = run_ridge(greedy({"--json", "--quiet"}), {.env = {"RIDGE_N_PREDICT=3"}});
  EXPECT_EQ(json::parse(from_env.out)["tokens"].size(), 3u);
  const Outcome both = run_ridge(greedy({"--json", "--quiet", "-n", "6"}), {.env = {"RIDGE_N_PREDICT=3"}});
  EXPECT_EQ(json::parse(both.out)["tokens"].size(), 6u);
  const Outcome bad = run_ridge(greedy({}), {.env = {"RIDGE_TOP_P=warm"}});
  EXPECT_EQ(bad.code, 2);
  EXPECT_EQ(run_ridge(greedy({"-n", "1"}), {.env = {"RIDGE_QUIET=1"}}).err, "");
}

TEST(Run, AFullDiskIsAFailure) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const Outcome outcome = run_ridge(greedy({"-n", "5", "--quiet"}), {.out_path = "/dev/full"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cannot write the output"));
}

void interrupt_soon(pid_t pid) {
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  kill(pid, SIGINT);
}

TEST(Run, CtrlCEndsCleanlyWithWhatThereIs) {
  const Outcome outcome = run_ridge({"run", "-m", kTinyModel, "-p", "Once", "-c", "200000", "--ignore-eos"},
                                    {.while_running = interrupt_soon});
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_NE(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("stopped  interrupted"));
}

TEST(Eval, PerplexityOfAStoryIsSmall) {
  TempDir dir;
  const std::string file = dir.write("story.txt", kStory).native();
  const Outcome outcome = run_ridge({"eval", "ppl", "-m", kTinyModel, "-f", file, "-c", "64"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::ContainsRegex("Final estimate: PPL = [1-5]\\.[0-9]{4} \\+/- "));
  EXPECT_THAT(outcome.err, testing::ContainsRegex("\\[1\\][0-9.]+,\\[2\\][0-9.]+,"));
}

TEST(Eval, KldAddsTheControlRowAndPrintsATable) {
  TempDir dir;
  const std::string file = dir.write("story.txt", kStory).native();
  const Outcome outcome = run_ridge(
      {"eval", "kld", "-m", kTinyModel, "-f", file, "-c", "64", "--path", "decode", "-ctk", "rotor-3", "-ctv", "f16"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("| f16 |"));
  EXPECT_THAT(outcome.out, HasSubstr("| rotor-3/f16 |"));
  EXPECT_THAT(outcome.out, HasSubstr("Mean    KLD:"));
}

TEST(Eval, JsonAndResultsHoldTheSameRows) {
  TempDir dir;
  const std::string file = dir.write("story.txt", kStory).native(), results = (dir / "r.jsonl").native();
  const Outcome outcome = run_ridge(words(
      "eval kld -m {} -f {} -c 64 --kv f16,rotor-3:window=0 --json --quiet --results {}", {kTinyModel, file, results}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const json rows = json::parse(outcome.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["kld"]["mean"]["value"], 0);
  EXPECT_GT(rows[1]["kld"]["mean"]["value"], 0);
  EXPECT_EQ(rows[1]["corpus_bytes"], kStory.size());
  std::istringstream lines(slurp(results));
  std::string line;
  for (size_t i = 0; std::getline(lines, line); ++i) EXPECT_EQ(json::parse(line), rows[i]);
}

TEST(Profile, ATableARowAndATrace) {
  const TempDir dir;
  const std::string trace = (dir / "step.json").native(), results = (dir / "rows.jsonl").native();
  const Outcome outcome = run_ridge(
      words("profile -m synth:tiny@weights=q8_0 -d 40 --kv-quant rotor-3 -r 4 --quiet --trace {} --results {}",
            {trace, results}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("| the step |"));
  EXPECT_THAT(outcome.out, HasSubstr("gemv"));
  const json row = json::parse(slurp(results));
  EXPECT_EQ(row["kind"], "profile");
  EXPECT_EQ(row["depth"], 40);
  EXPECT_EQ(row["kv"], "rotor-3");
  EXPECT_NEAR(row["parts_us"].get<double>() + row["gap_us"].get<double>(), row["step_us"].get<double>(), 1e-6);
  EXPECT_FALSE(json::parse(slurp(trace))["traceEvents"].empty());
}

TEST(Bench, DecodeRowsHaveTheKnownFieldsInOrderAndPassTheirCheck) {
  const Outcome outcome =
      run_ridge(words("bench decode -m synth:tiny@weights=q4_0 -p 16 -n 4 -pg 8,4 -d 0,64 -r 2 -o jsonl --quiet"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::vector<nlohmann::ordered_json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::ordered_json::parse(line));
  ASSERT_EQ(rows.size(), 6u);
  const std::vector<std::string> fields = words(
      "build_commit build_number cpu_info gpu_info backends model_filename model_type model_size model_n_params "
      "n_batch "
      "n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers n_cpu_moe split_mode main_gpu "
      "no_kv_offload flash_attn devices tensor_split tensor_buft_overrides load_mode embeddings no_op_offload no_host "
      "fit_target fit_min_ctx n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts samples_ns "
      "samples_ts");
  size_t i = 0;
  for (const auto& [name, value] : rows[0].items()) {
    if (i >= fields.size()) break;
    EXPECT_EQ(name, fields[i++]);
  }
  EXPECT_EQ(rows[0]["test"], "pp16");
  EXPECT_EQ(rows[1]["test"], "tg4");
  EXPECT_EQ(rows[2]["test"], "pp8+tg4");
  EXPECT_EQ(rows[4]["test"], "tg4 @ d64");
  for (const auto& row : rows) {
    EXPECT_EQ(row["checked"], true);
    EXPECT_TRUE(row["load_1min"].is_number());
    EXPECT_LT(row["check_error"], row["check_bound"]);
    EXPECT_EQ(row["samples_ns"].size(), 2u);
    EXPECT_EQ(row["pct_of_roof"].is_null(), row["n_prompt"] != 0) << row["test"];
    EXPECT_LE(row["lower_quartile_ms"], row["median_ms"]);
    EXPECT_LE(row["median_ms"], row["upper_quartile_ms"]);
  }
  EXPECT_GT(rows[4]["read_bytes"], rows[1]["read_bytes"]);
}

TEST(Bench, EveryOutputFormIsWellFormed) {
  const auto out = [](const std::string& form) {
    return run_ridge(words("bench decode -m synth:tiny -p 4 -n 2 -r 1 --no-check --quiet -o {}", {form})).out;
  };
  EXPECT_EQ(json::parse(out("json")).size(), 2u);
  EXPECT_THAT(out("md"), HasSubstr("| test | t/s |"));
  const std::string csv = out("csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  EXPECT_TRUE(csv.starts_with("build_commit,build_number,"));
  EXPECT_THAT(out("sql"), HasSubstr("INSERT INTO llama_bench ("));
}

TEST(Bench, CodingHasARowForEachCodedCache) {
  const Outcome outcome =
      run_ridge(words("bench attention --coding --heads 4/2 --head-dim 64 --seq 96 --kv q8_0 -r 2 --quiet "
                      "--max-seconds 1 --roof-size 4 -o json"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const json rows = json::parse(outcome.out);
  ASSERT_EQ(rows.size(), 1u) << rows;
  EXPECT_EQ(rows[0]["kind"], "coding");
  EXPECT_EQ(rows[0]["kv"], "q8_0");
  EXPECT_GT(rows[0]["f16_us"], 0) << "f16 comes along";
  EXPECT_GT(rows[0]["sum_us"], rows[0]["coded_us"]);
  EXPECT_EQ(rows[0]["k_error"], rows[0]["v_error"]);
}

TEST(Bench, ForcedAcceptanceNeedsNoText) {
  const Outcome outcome =
      run_ridge(words("bench decode -m synth:tiny@mtp=1 --spec-type draft-mtp --force-accept 0.5 -d 0,64 -p 8 -n 8 -r "
                      "1 --quiet -o json -ctkd q8_0"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const json rows = json::parse(outcome.out);
  ASSERT_EQ(rows.size(), 2u) << rows;
  EXPECT_EQ(rows[1]["spec_type"], "mtp") << "draft-mtp is another name of it";
  EXPECT_EQ(rows[1]["forced_accept"], 0.5);
  EXPECT_EQ(rows[1]["n_depth"], 64);
  EXPECT_EQ(rows[1]["draft_kv"], "q8_0/f16");
  EXPECT_TRUE(rows[1]["texts_differ"].is_null());
}

TEST(Bench, BatchesHaveTheKnownColumnsAndStoredRows) {
  TempDir dir;
  const std::string file = (dir / "rows.jsonl").native();
  const Outcome outcome = run_ridge(words(
      "bench batch -m synth:tiny@weights=q8_0 -npp 24 -ntg 4 -npl 1,3 --kv f16,rotor-3 --results {} --quiet", {file}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |"));
  EXPECT_THAT(outcome.out, HasSubstr("| rotor-3 | 24 | 4 | 3 | 84 |"));
  std::istringstream lines(slurp(file));
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    const json row = json::parse(line);
    for (const char* name : {"build_commit", "cpu_info", "model_filename", "n_threads", "kv_k", "kernels", "command"})
      EXPECT_TRUE(row.contains(name)) << name;
    EXPECT_EQ(row["kind"], "batch");
    EXPECT_EQ(row["checked"], true);
    EXPECT_EQ(row["n_prompt"].size(), row["n_seq"]);
    EXPECT_GT(row["speed_tg"], 0);
  }
  EXPECT_EQ(n, 4);
  const Outcome ragged =
      run_ridge(words("bench batch -m synth:tiny --lengths 8-40 -ntg 2 -npl 2 --fill --no-check --json --quiet"));
  ASSERT_EQ(ragged.code, 0) << ragged.err;
  EXPECT_EQ(json::parse(ragged.out).at(0)["n_prompt"], json({8, 40}));
  EXPECT_EQ(run_ridge({"bench", "batch", "-m", "synth:tiny", "--lengths", "8-40", "-npp", "5"}).code, 2);
}

TEST(Bench, AServerUnderLoadIsMeasuredByItsClients) {
  const TempDir dir;
  const std::string results = (dir / "serve.jsonl").native();
  std::vector<std::string> args = words(
      "bench serve --clients 1,4 --requests 12 --prompt-tokens 20-60 --answer-tokens 4-12 --shared-prefix 130 "
      "--prefixes 2 --kv f16,rotor-3 -c 256 --checkpoint-every 64 --api-key secret-of-mine");
  args.insert(args.end(), {"-m", kTinyModel, "--results", results});
  const Outcome outcome = run_ridge(args);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("| f16 | 1 client | 2x130 + 20-60 | 12 | 0 |"));
  EXPECT_THAT(outcome.out, HasSubstr("| rotor-3 | 4 clients | 2x130 + 20-60 | 12 | 0 |"));
  EXPECT_THAT(slurp(results), Not(HasSubstr("secret-of-mine")));
  std::vector<json> rows;
  std::istringstream lines(slurp(results));
  for (std::string line; std::getline(lines, line);) rows.push_back(json::parse(line));
  ASSERT_EQ(rows.size(), 4u);
  for (const json& row : rows) {
    EXPECT_EQ(row["kind"], "serve");
    EXPECT_EQ(row["requests_ok"], 12);
    EXPECT_EQ(row["gen_tokens"], rows[0]["gen_tokens"]) << "the same lengths in every test";
    EXPECT_EQ(row["prompt_tokens_sent"], rows[0]["prompt_tokens_sent"]);
    // Whoever comes later finds one of the two beginnings up to the checkpoint at 128.
    EXPECT_GE(row["prompt_tokens_cached"], 10 * 128);
    EXPECT_EQ(row["server_cached_tokens"], row["prompt_tokens_cached"]);
    EXPECT_EQ(row["server_prompt_tokens"].get<int>() + row["server_cached_tokens"].get<int>(),
              row["prompt_tokens_sent"]);
    EXPECT_GT(row["kv_bytes_peak"], 0);
    EXPECT_GT(row["step_ms_p50"], 0);
    EXPECT_LE(row["ttft_ms"]["p50"], row["ttft_ms"]["p99"]);
    EXPECT_GT(row["itl_ms"]["p50"], 0);
    EXPECT_LE(row["mean_decode_batch"], row["clients"]);
  }
  EXPECT_LT(rows[2]["kv_bytes_per_token"], rows[0]["kv_bytes_per_token"]);
}

TEST(Bench, LoadThatCannotWorkIsRefused) {
  const auto refused = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"bench", "serve"});
    const Outcome outcome = run_ridge(more);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(refused({}), HasSubstr("--url"));
  EXPECT_THAT(refused({"-m", kTinyModel, "--rate", "2", "--clients", "2"}), HasSubstr("--rate: does not go with"));
  EXPECT_THAT(refused({"-m", kTinyModel, "--prompt-tokens", "9-3"}), HasSubstr("ends below its beginning"));
  EXPECT_THAT(refused({"-m", kTinyModel, "--prompt-tokens", "600"}), HasSubstr("context of 128"));
  EXPECT_THAT(refused({"--url", "127.0.0.1:1", "--parallel", "4"}), HasSubstr("--parallel"));
  EXPECT_EQ(run_ridge({"bench", "serve", "--url", "127.0.0.1:1"}).code, 1);
}

TEST(Bench, ADepthPastTheContextIsNotASurprise) {
  const Outcome outcome =
      run_ridge({"bench", "decode", "-m", "synth:tiny", "-p", "0", "-n", "2", "-r", "1", "-d", "4000", "--quiet"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(Bench, BandwidthMeasuresEveryStream) {
  const Outcome outcome = run_ridge({"bench", "bandwidth", "--size", "16", "-r", "3", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json row = json::parse(outcome.out);
  std::vector<std::string> names;
  for (const json& stream : row["streams"]) names.push_back(stream["name"]);
  EXPECT_THAT(names, testing::IsSupersetOf({"read", "write", "copy", "triad"}));
  ASSERT_EQ(row["rates"].size(), 4u);
  EXPECT_GT(row["rates"][0]["ridge_op_per_byte"], 0);
}

std::vector<std::string> quick_gemv(std::vector<std::string> more) {
  std::vector<std::string> args =
      words("bench gemv --shape 96x256 --batch 1,3 -t 2 --repeat 2 --max-seconds 1 --sets 3 --roof-size 8");
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(Bench, MatmulsOnTheCpuAreCheckedTimedAndStored) {
  TempDir dir;
  const std::string results = (dir / "r.jsonl").native();
  const Outcome outcome = run_ridge(
      quick_gemv({"--weights", "int4_g128,f16", "--kernel", "two-op,ref", "-o", "jsonl", "--results", results}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out), stored(slurp(results));
  std::vector<std::string> kernels;
  for (std::string line, other; std::getline(lines, line);) {
    const json row = json::parse(line);
    ASSERT_TRUE(std::getline(stored, other));
    EXPECT_EQ(json::parse(other)["median_us"], row["median_us"]);
    EXPECT_EQ(row["device"], "cpu");
    EXPECT_EQ(row["n_threads"], 2);
    EXPECT_EQ(row["checked"], true);
    EXPECT_EQ(row["samples_us"].size(), 2u);
    EXPECT_GT(row["roof_gb_s"], 0);
    kernels.push_back(row["weight_format"].get<std::string>() + " " + row["kernel"].get<std::string>());
  }
  EXPECT_THAT(kernels, testing::ElementsAre("int4_g128 two-op", "int4_g128 ref", "int4_g128 two-op", "int4_g128 ref",
                                            "f16 ref", "f16 ref"));
  EXPECT_THAT(outcome.err,
              HasSubstr("gemv 96x256, 1 token int4_g128, two-op: predicted 210.7 KB (the work needs 14.1 KB)"))
      << "the traffic is said before the measurement";
}

TEST(Bench, AttentionAndAppendRunOnTheCpu) {
  for (const char* op : {"attention", "append"}) {
    const Outcome outcome =
        run_ridge(words("bench {} --heads 4/2 --head-dim 64 --seq 100 --batch 1 --kv f16,rotor-3 --repeat 2 "
                        "--max-seconds 1 --sets 2 --roof-size 8 --json",
                        {op}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json rows = json::parse(outcome.out);
    ASSERT_EQ(rows.size(), 2u) << op;
    EXPECT_EQ(rows[1]["kv"], "rotor-3");
    EXPECT_EQ(rows[1]["checked"], true);
  }
}

TEST(Bench, AWrongKernelGetsNoTimesIsNotStoredAndTheCommandEndsWith3) {
  TempDir dir;
  const std::string results = (dir / "r.jsonl").native();
  const RunOptions planted{.program = RIDGE_BINARY_DIR "/tests/ridge_planted"};
  const Outcome outcome =
      run_ridge(quick_gemv({"--weights", "q8_0", "--kernel", "all", "-o", "jsonl", "--results", results}), planted);
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("2 rows failed the check and got no times"));
  std::istringstream lines(outcome.out);
  int n_failed = 0, n_timed = 0;
  for (std::string line; std::getline(lines, line);) {
    const json row = json::parse(line);
    const bool wrong = row["kernel"] == "planted-error";
    EXPECT_EQ(row["checked"], !wrong) << row["kernel"];
    EXPECT_EQ(row["median_us"].is_null(), wrong);
    EXPECT_EQ(row["samples_us"].empty(), wrong);
    (wrong ? n_failed : n_timed) += 1;
  }
  EXPECT_EQ(n_failed, 2);
  EXPECT_EQ(n_timed, 4) << "two-op and ref, one token and three";
  EXPECT_THAT(slurp(results), testing::Not(HasSubstr("planted-error")));
  const Outcome table = run_ridge(quick_gemv({"--weights", "q8_0", "--kernel", "planted-error"}), planted);
  EXPECT_EQ(table.code, 3);
  EXPECT_THAT(table.out, HasSubstr("FAILED"));
}

TEST(Bench, TheShippedProgramHasNoWrongKernel) {
  const Outcome outcome = run_ridge(quick_gemv({"--weights", "q8_0", "--kernel", "planted-error"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("gemv has no kernel 'planted-error'"));
}

TEST(Quantize, RoundTripsThroughTheProgram) {
  TempDir dir;
  const std::string out = (dir / "half.gguf").native();
  const Outcome outcome = run_ridge({"quantize", kTinyModel, out, "--type", "f16"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Outcome text = run_ridge({"run", "-m", out, "-p", "Once upon a time", "--temp", "0", "-n", "20", "--quiet"});
  EXPECT_EQ(text.out, run_ridge(greedy({"-n", "20", "--quiet"})).out);
}

TEST(Quantize, WhatIsThereIsReplacedOnlyWhenAsked) {
  TempDir dir;
  const std::string out = dir.write("out.gguf", "mine").native();
  const Outcome refused = run_ridge({"quantize", kTinyModel, out, "--type", "f16"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("exists (name another, or add --force to replace it)"));
  EXPECT_EQ(slurp(out), "mine");
  EXPECT_EQ(run_ridge({"quantize", kTinyModel, out, "--type", "f16", "--force"}).code, 0);
  EXPECT_THAT(slurp(out), testing::StartsWith("GGUF"));
  EXPECT_EQ(run_ridge({"quantize", kTinyModel, dir.path().native(), "--type", "f16", "--force"}).code, 2);
  EXPECT_THAT(run_ridge({"quantize", kTinyModel, (dir / "no/x.gguf").native(), "--type", "f16"}).err,
              HasSubstr("there is no folder"));
}

TEST(Quantize, ASecondLossIsRefusedOrSaid) {
  TempDir dir;
  const std::string once = (dir / "once.gguf").native(), twice = (dir / "twice.gguf").native();
  const Outcome first = run_ridge({"quantize", kTinyModel, once, "--type", "q4_k_m"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.err, "");
  EXPECT_THAT(first.out, ContainsRegex("MiB, [6-9]\\.[0-9]+ bits a weight: matrices in q4_k, some in q6_k"))
      << "most rows fell back";
  const Outcome refused = run_ridge({"quantize", once, twice, "--type", "q4_0"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("compressed already"));
  EXPECT_THAT(refused.err, HasSubstr("add --allow-requantize"));
  const Outcome asked = run_ridge({"quantize", once, twice, "--type", "q4_0", "--allow-requantize", "--json"});
  EXPECT_EQ(asked.code, 0);
  EXPECT_THAT(asked.err, HasSubstr("warning: "));
  EXPECT_GT(json::parse(asked.out)["requantized"], 0);
  EXPECT_GT(json::parse(asked.out)["bits_per_weight"], 4.4);
}

TEST(Quantize, AFailureLeavesNothingBehind) {
  TempDir dir;
  const std::string bad = dir.write("bad.gguf", "GGUF\x03 not really").native();
  const Outcome outcome = run_ridge({"quantize", bad, (dir / "out.gguf").native(), "--type", "q8_0"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_EQ(dir.names(), std::vector<std::string>{"bad.gguf"});
}

TEST(Info, NamesBuildMachineFormatsKernelsAndModel) {
  const Outcome outcome = run_ridge({"info", "-m", kTinyModel, "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json row = json::parse(outcome.out);
  EXPECT_EQ(row["model"]["arch"], "llama");
  EXPECT_EQ(row["model"]["head_dim"], 8);
  EXPECT_FALSE(row["machine"]["cpu"].get<std::string>().empty());
  EXPECT_GE(row["formats"]["kv"].size(), 3u);
  EXPECT_TRUE(row["kernels"].contains("gemv"));
  EXPECT_THAT(run_ridge({"info"}).out, HasSubstr("kernels   gemv"));
}

TEST(Info, FormatsCarryTheFactsTheDocumentsAreMadeFrom) {
  const json formats = json::parse(run_ridge({"info", "--json"}).out)["formats"];
  for (const json& f : formats["weights"]) {
    if (f["name"] == "i2_s") {
      EXPECT_EQ(f["tail_bytes"], 32);
    }
    if (f["name"] == "int4_g128") {
      EXPECT_TRUE(f["gguf_type"].is_null());
    }
    const std::string name = f["name"];
    const bool only_read = name == "q2_k" || name == "q3_k" || name == "mxfp4" || name == "fp8_g32" ||
                           name.starts_with("iq1") || name.starts_with("iq2") || name.starts_with("iq3");
    EXPECT_EQ(f["written"], !only_read) << f;
    EXPECT_EQ(f["bits_per_weight"].get<double>(), 8.0 * f["block_bytes"].get<int>() / f["group"].get<int>()) << f;
  }
  for (const json& f : formats["kv"]) {
    EXPECT_EQ(f["row_bytes"]["128"].get<int>() / 16.0, f["bits_per_value"].get<double>()) << f;
    ASSERT_EQ(f["shapes"].size(), 3u);
    for (const json& s : f["shapes"])  // report = formula
      EXPECT_EQ(s["bytes_per_token"], 2 * s["n_layers"].get<int>() * s["n_kv_heads"].get<int>() *
                                          f["row_bytes"][std::to_string(s["head_dim"].get<int>())].get<int>())
          << f["name"] << s;
    if (f["name"] != "rotor-3") continue;
    EXPECT_EQ(f["policy"]["rotation"], "hadamard");
    EXPECT_EQ(f["scales"][0], f["policy"]["scale"]);
    // 4 sinks in f16 and 96 + 32 + 32 rows of the ring in i8r; a centre for K.
    for (const json& s : f["shapes"]) {
      const int rows = s["n_layers"].get<int>() * s["n_kv_heads"].get<int>();
      EXPECT_EQ(s["fixed_bytes"], rows * (2 * (4 * 256 + 160 * 130) + 4 * 128)) << s;
    }
  }
}

TEST(Info, NamesTheGpusOrSaysWhyThereAreNone) {
  const json gpu = json::parse(run_ridge({"info", "--json"}).out)["gpu"];
  EXPECT_EQ(gpu["devices"].empty(), !gpu["why_none"].get<std::string>().empty());
  EXPECT_THAT(run_ridge({"info"}).out, HasSubstr(gpu["devices"].empty() ? "gpu       none: " : "gpu       "));
}

TEST(Explain, MarksOneKernelAndSaysWhyNotTheOthers) {
  const Outcome outcome =
      run_ridge({"explain", "gemv", "--shape", "64x64", "--format", "q8_0", "--isa", "scalar", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json row = json::parse(outcome.out);
  EXPECT_EQ(row["work"]["flops"], 2 * 64 * 64);
  int chosen = 0;
  for (const json& kernel : row["kernels"]) {
    chosen += kernel["chosen"].get<bool>();
    EXPECT_EQ(kernel["supported"].get<bool>(), kernel["why_not"] == "");
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_EQ(row["kernels"][0]["chosen"], true);
}

TEST(Explain, CoversEveryOperation) {
  for (const char* op : {"gemv", "gemm", "attention", "norm_rope", "kv_round", "delta", "stream"}) {
    const Outcome outcome = run_ridge({"explain", op});
    EXPECT_EQ(outcome.code, 0) << op;
    EXPECT_THAT(outcome.out, HasSubstr("chosen")) << op;
  }
}

}  // namespace
}  // namespace ridge
