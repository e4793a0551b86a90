#include "lab/model/bench_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace ridge::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int> lengths(std::string_view text, int n) {
  return parse_prompt_lengths("--lengths", text, 1 << 24).or_throw().of(n);
}

TEST(BatchBench, LengthsAreSpreadOrDealt) {
  EXPECT_THAT(lengths("512", 3), ElementsAre(512, 512, 512));
  EXPECT_THAT(lengths("10,70", 3), ElementsAre(10, 70, 10));
  EXPECT_THAT(lengths("100-4000", 4), ElementsAre(100, 1400, 2700, 4000));
  EXPECT_THAT(lengths("100-4000", 1), ElementsAre(2050));
  EXPECT_THAT(lengths("1-16777216", 3), ElementsAre(1, 8388608, 16777216));
  for (const char* wrong : {"", "0", "9-3", "1-2-3", "a-b", "1-2,3-9999999", "-5"})
    EXPECT_FALSE(parse_prompt_lengths("--lengths", wrong, 1 << 24)) << wrong;
}

TEST(BatchBench, TestsAreTheCrossProduct) {
  BatchParams params;
  params.n_prompt = {{{64}}, {{10, 30}, true}};
  params.n_gen = {8};
  params.n_parallel = {1, 3};
  params.kv = parse_kv_list("f16,q8_0").or_throw();
  const auto tests = batch_tests(params);
  ASSERT_EQ(tests.size(), 8u);
  EXPECT_EQ(tests[1].name(false), "pp64+tg8 b3");
  EXPECT_EQ(tests[3].name(true), "fill10-30+tg8 b3");
  EXPECT_EQ(tests[3].prompt_tokens(), 60);
  EXPECT_EQ(tests[3].gen_tokens(), 24);
  EXPECT_EQ(tests[3].longest(), 38);
}

BatchParams tiny() {
  BatchParams params{.model = "synth:tiny@weights=q8_0"};
  params.n_prompt = {{{20}}};
  params.n_gen = {5};
  params.n_parallel = {1, 4};
  params.n_ubatch = 16;  // sequences begin and end inside of steps
  params.load.n_threads = 1;
  return params;
}

std::vector<BatchRow> run(const BatchParams& params, int failed = 0) {
  std::vector<BatchRow> rows;
  BatchHooks hooks;
  hooks.on_row = [&](const BatchRow& row) {
    rows.push_back(row);
    EXPECT_EQ(row.prompt_seconds.size(), row.fill ? 0u : size_t(params.repeats));
    EXPECT_EQ(row.gen_seconds.size(), size_t(params.repeats));
    EXPECT_GT(row.gen_rate(), 0);
    EXPECT_GT(row.pct_of_roof(), 0);
  };
  hooks.on_failed = [&](const BatchRow& row) { EXPECT_TRUE(row.prompt_seconds.empty() && row.gen_seconds.empty()); };
  EXPECT_EQ(run_batch_bench(params, hooks), failed);
  return rows;
}

TEST(BatchBench, PromptsAndGenerationsOfEqualAndRaggedSequencesAreTimed) {
  BatchParams params = tiny();
  params.n_prompt.push_back({{3, 90}, true});
  params.kv = parse_kv_list("f16,rotor-3:window=32").or_throw();
  params.repeats = 2;
  const std::vector<BatchRow> rows = run(params);
  ASSERT_EQ(rows.size(), 8u);
  for (const BatchRow& row : rows) {
    EXPECT_TRUE(row.check.done && row.check.passed) << row.check.nmse;
    EXPECT_GT(row.prompt_rate(), 0);
  }
  EXPECT_THAT(rows[1].check.what, HasSubstr(", 3 sequences in a batch"));
  // Weights once, the caches of all sequences.
  const double per_token = double(rows[0].cache.bytes_per_token());
  EXPECT_NEAR(rows[1].read_bytes - rows[0].read_bytes, 3 * per_token * (20 + 3), 1);
}

TEST(BatchBench, FilledCachesStandForPromptsAndRowsSaySo) {
  BatchParams params = tiny();
  params.n_prompt = {{{200}}};
  params.fill = true;
  const std::vector<BatchRow> rows = run(params);
  ASSERT_EQ(rows.size(), 2u);
  const Row fields = batch_columns().fields(rows[1]);
  EXPECT_EQ(fields["kind"], "batch");
  EXPECT_EQ(fields["prompts"], "random rows");
  EXPECT_EQ(fields["n_kv"], 4 * 205);
  EXPECT_TRUE(fields["t_pp"].is_null());
  EXPECT_EQ(fields["checked"], true);
  EXPECT_THAT(batch_columns().line(rows[1]), HasSubstr("| 200 (fill) | 5 | 4 | 820 |  |  |"));
}

TEST(BatchBench, DraftTokensAreTimedBesideGenerationWithout) {
  for (const bool fill : {false, true}) {
    BatchParams params = tiny();
    params.model += "@mtp=1";
    params.n_gen = {40};
    params.fill = fill;
    params.repeats = 2;
    params.spec = BatchSpec{.draft = {.type = "mtp", .depth = 3}, .forced_accept = 1};
    params.spec->open = [](const Model& model, int n_ctx, int n_texts) {
      return mtp_proposers(model, "", {.n_ctx = n_ctx}, {}, n_texts);
    };
    const std::vector<BatchRow> rows = run(params);
    ASSERT_EQ(rows.size(), 2u);
    for (const BatchRow& row : rows) {
      EXPECT_EQ(row.spec_seconds.size(), 2u);
      const int64_t n_tokens = 2 * row.test.gen_tokens();
      EXPECT_GE(row.report.n_steps + row.report.n_accepted, n_tokens - 2 * 3 * row.test.n_seq());
      EXPECT_LE(row.report.n_steps, n_tokens + row.test.n_seq());
      EXPECT_LE(row.report.n_accepted, row.report.n_proposed);
      const Row fields = batch_spec_columns().fields(row);
      EXPECT_EQ(fields["kind"], "batch");
      EXPECT_EQ(fields["spec_type"], "mtp");
      EXPECT_EQ(fields["forced_accept"], 1);
      EXPECT_GT(fields["speed_tg_spec"].get<double>(), 0);
      EXPECT_NEAR(fields["speedup"].get<double>(), row.spec_rate() / row.gen_rate(), 1e-9);
      EXPECT_EQ(fields["samples_t_spec"].size(), 2u);
    }
  }
}

TEST(BatchBench, AFailedCheckGivesNoSpeed) {
  BatchParams params = tiny();
  params.check_bound = -1;
  EXPECT_TRUE(run(params, 2).empty());
}

TEST(BatchBench, CachesThatDoNotFitAreRefusedFirst) {
  BatchParams params = tiny();
  params.n_prompt = {{{1 << 20}}};
  params.n_parallel = {1, 4096};
  params.fill = true;
  params.check = false;
  try {
    run(params);
    FAIL() << "4 G positions fit";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::no_memory);
    EXPECT_THAT(e.what(), HasSubstr("4096 sequences need "));
    EXPECT_THAT(e.what(), HasSubstr(" are free"));
  }
}

}  // namespace
}  // namespace ridge::lab
