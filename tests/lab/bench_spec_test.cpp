// bench decode --spec-type: rows of generation with and without proposals, and texts that differ.
#include "lab/model/bench_spec.h"

#include <gtest/gtest.h>

#include "cases/paths.h"

namespace ridge::lab {
namespace {

SpecBenchParams tiny_spec() {
  SpecBenchParams params{.models = {RIDGE_SOURCE_DIR "/models/stories260K.gguf"}};
  for (int i = 0; i < 40; ++i) params.text += "Once upon a time there was a little girl who lived in a house. ";
  params.text_name = "girl.txt";
  params.n_prompt = {40};
  params.n_gen = {30};
  params.kv = parse_kv_list("f16,rotor-3").or_throw();
  params.repeats = 2;
  params.load.n_threads = 1;
  params.draft.type = "lookup";
  params.open = [](const Model&, int) -> ProposerMaker { return make_lookup_proposer; };
  return params;
}

TEST(SpecBench, BothWaysAreTimedOverOneText) {
  const SpecBenchParams params = tiny_spec();
  std::vector<SpecBenchRow> rows;
  SpecBenchHooks hooks;
  hooks.on_row = [&](const SpecBenchRow& row) { rows.push_back(row); };
  EXPECT_EQ(run_spec_bench(params, hooks), 0);
  ASSERT_EQ(rows.size(), 2u);
  for (const SpecBenchRow& row : rows) {
    EXPECT_TRUE(row.check.passed);
    EXPECT_EQ(row.seconds.size(), 2u);
    EXPECT_EQ(row.plain_seconds.size(), 2u);
    EXPECT_EQ(row.spec.n_steps + row.spec.n_accepted, 2 * 29) << "the first token comes from the prompt's step";
    const Row f = spec_columns().fields(row);
    EXPECT_EQ(f["kind"], "spec");
    EXPECT_EQ(f["spec_accepted"], row.spec.n_accepted);
    EXPECT_NEAR(f["accepted_per_step"].get<double>(), double(row.spec.n_accepted) / double(row.spec.n_steps), 1e-12);
    EXPECT_NEAR(f["speedup"].get<double>(), f["avg_ts"].get<double>() / f["plain_avg_ts"].get<double>(), 1e-9);
    EXPECT_EQ(f["samples_ts"].size(), 2u);
    EXPECT_EQ(f["texts_differ"], 0);
    EXPECT_TRUE(f["forced_accept"].is_null());
    EXPECT_EQ(f["samples_repeated_share"].size(), 2u);
    EXPECT_NE(spec_columns().line(row).find("| lookup | pp40+tg30 |"), std::string::npos);
  }
}

TEST(SpecBench, TheShareOfTextThatRepeatsIsOfEightTokens) {
  EXPECT_EQ(repeated_share({}), 0);
  std::vector<int32_t> tokens(16);
  for (int i = 0; i < 16; ++i) tokens[size_t(i)] = i;
  EXPECT_EQ(repeated_share(tokens), 0);
  for (int i = 0; i < 16; ++i) tokens.push_back(i);
  EXPECT_EQ(repeated_share(tokens), 9.0 / 32) << "tokens 7 to 15 of the second time";
  EXPECT_EQ(repeated_share(std::vector<int32_t>(32, 5)), 24.0 / 32) << "a loop of one token";
}

TEST(SpecBench, ForcedAcceptanceIsTimedOnRandomTokensAtADepth) {
  SpecBenchParams params = tiny_spec();
  params.models = {"synth:tiny@mtp=1"};
  params.text.clear();
  params.n_depth = {0, 200};
  params.kv = parse_kv_list("rotor-3").or_throw();
  params.forced_accept = 0.8;
  std::vector<SpecBenchRow> rows;
  SpecBenchHooks hooks;
  hooks.on_row = [&](const SpecBenchRow& row) { rows.push_back(row); };
  for (const char* type : {"lookup", "mtp"}) {
    params.draft.type = type;
    if (params.draft.type == "mtp") {
      params.draft.vocab = 100;
      params.open = [](const Model& model, int n_ctx) {
        return mtp_proposers(model, "", {.n_ctx = n_ctx}, {.vocab = 100});
      };
    }
    rows.clear();
    EXPECT_EQ(run_spec_bench(params, hooks), 0);
    ASSERT_EQ(rows.size(), 2u);
    for (const SpecBenchRow& row : rows) {
      const Row f = spec_columns().fields(row);
      EXPECT_EQ(f["forced_accept"], 0.8);
      EXPECT_TRUE(f["texts_differ"].is_null()) << "not compared";
      EXPECT_EQ(f["n_depth"], row.n_depth);
      EXPECT_EQ(f["spec_vocab"], params.draft.vocab);
      EXPECT_EQ(row.prompt_seconds.size(), 2u);
      EXPECT_GT(f["prompt_ts"], 0);
      EXPECT_GT(f["plain_prompt_ts"], 0);
      EXPECT_EQ(f["device_bytes"], 0) << "a CPU";
      EXPECT_EQ(row.spec.n_steps + row.spec.n_accepted, 2 * 29);
      const std::string name = row.n_depth > 0 ? "forced 0.8 | pp40+tg30 @ d200 |" : "forced 0.8 | pp40+tg30 |";
      EXPECT_NE(spec_columns().line(row).find(name), std::string::npos);
    }
  }
}

TEST(SpecBench, RefusesWhatHasNoRealText) {
  SpecBenchParams params = tiny_spec();
  params.check = false;
  params.n_prompt = {100000};
  EXPECT_THROW(run_spec_bench(params, {}), Error) << "longer than the text";
  params = tiny_spec();
  params.check = false;
  params.models = {"synth:tiny"};
  EXPECT_THROW(run_spec_bench(params, {}), Error) << "no tokenizer";
}

}  // namespace
}  // namespace ridge::lab
