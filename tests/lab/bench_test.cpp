#include "lab/model/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lab/rows/int_list.h"

namespace ridge::lab {
namespace {

using testing::ElementsAre;

std::vector<int> ints(std::string_view text) { return parse_int_list("-p", text, 0, 1 << 24).or_throw(); }

TEST(BenchParams, ListsAndRanges) {
  EXPECT_THAT(ints("512"), ElementsAre(512));
  EXPECT_THAT(ints("1,2,4"), ElementsAre(1, 2, 4));
  EXPECT_THAT(ints("512-4096*2"), ElementsAre(512, 1024, 2048, 4096));
  EXPECT_THAT(ints("1-9+4"), ElementsAre(1, 5, 9));
  EXPECT_THAT(ints("3-5"), ElementsAre(3, 4, 5));
  EXPECT_THAT(ints("0,8-16*2"), ElementsAre(0, 8, 16));
}

TEST(BenchParams, WrongOrEndlessListsAreRefused) {
  for (const char* text : {"", ",", "a", "1.5", "5-1", "1-5*1", "1-5+0", "0-8*2", "1-5*", "1-5-7", "1-100000000",
                           "99999999999", "-1", "1,", " 1", "1-2+99999999999"})
    EXPECT_FALSE(parse_int_list("-p", text, 0, 1 << 24)) << text;
}

TEST(BenchParams, RangesThatWouldOverflowEnd) { EXPECT_THAT(ints("16777215-16777216*2"), ElementsAre(16777215)); }

TEST(BenchParams, TestsAreTheCrossProductAndNamedAsKnown) {
  BenchParams params;
  params.n_prompt = {512, 0};
  params.n_gen = {128};
  params.prompt_gen = {{64, 32}};
  params.n_depth = {0, 4096};
  params.kv = parse_kv_list("f16,q8_0").or_throw();
  const auto tests = bench_tests(params);
  ASSERT_EQ(tests.size(), 2u * 2 * 3);
  EXPECT_EQ(tests[0].name(), "pp512");
  EXPECT_EQ(tests[1].name(), "tg128");
  EXPECT_EQ(tests[2].name(), "pp64+tg32");
  EXPECT_EQ(tests[3].name(), "pp512 @ d4096");
  EXPECT_EQ(tests[3].n_ctx(), 4608);
  EXPECT_EQ(kv_text(tests[6].kv), "q8_0");
  params.by_record = [](const Model&, int) { return KvChoice{}; };
  const auto with_record = bench_tests(params);
  ASSERT_EQ(with_record.size(), 3u * 2 * 3);
  for (size_t i = 0; i < with_record.size(); ++i) EXPECT_EQ(with_record[i].by_record, i >= tests.size()) << i;
}

TEST(Bench, MeanAndSampleDeviation) {
  const MeanDeviation m = mean_deviation({2, 4, 6});
  EXPECT_EQ(m.mean, 4);
  EXPECT_EQ(m.deviation, 2);
  EXPECT_EQ(mean_deviation({5}).deviation, 0);
}

TEST(Bench, ClocksThatGiveNothingGiveNoVerdict) {
  for (const double bad : {0.0, -1.0, double(NAN), double(INFINITY)}) {
    BenchRow row;
    row.test.n_gen = 10;
    row.read_bytes = 100;
    row.roof_gb_s = 30;
    row.seconds = {1, bad};
    EXPECT_TRUE(std::isnan(row.avg_tokens_per_second())) << bad;
    EXPECT_TRUE(std::isnan(row.pct_of_roof())) << bad;
    const Row fields = bench_columns().fields(row);
    EXPECT_TRUE(fields["avg_ts"].is_null()) << bad;
    EXPECT_TRUE(fields["avg_ns"].is_null()) << bad;
    EXPECT_TRUE(fields["median_ms"].is_null()) << bad;
  }
}

TEST(Bench, BandwidthShareFollowsFromBytesAndTime) {
  BenchRow row;
  row.test.n_gen = 10;
  row.seconds = {2};     // 5 tokens/s
  row.read_bytes = 1e9;  // 5 GB/s
  row.roof_gb_s = 20;
  EXPECT_NEAR(row.read_gb_s(), 5, 1e-12);
  EXPECT_NEAR(row.pct_of_roof(), 25, 1e-12);
  row.test.n_prompt = 10;  // bytes of a mixed test are not one step's
  EXPECT_TRUE(std::isnan(row.read_gb_s()));
}

TEST(Bench, AFailedCheckGivesNoSpeed) {
  // The same kernels as the reference pass; a check that cannot be met does not.
  BenchParams params;
  params.models = {"synth:tiny@weights=q8_0"};
  params.n_threads = {1};
  params.n_prompt = {4};
  params.n_gen = {2};
  params.repeats = 1;
  int rows = 0, failed = 0;
  BenchHooks hooks;
  hooks.on_row = [&](const BenchRow& row) {
    ++rows;
    EXPECT_TRUE(row.check.done && row.check.passed);
    EXPECT_LT(row.check.nmse, row.check.bound);
  };
  hooks.on_failed = [&](const BenchRow& row) {
    ++failed;
    EXPECT_TRUE(row.seconds.empty());
  };
  EXPECT_EQ(run_bench(params, hooks), 0);
  EXPECT_EQ(rows, 2);
  EXPECT_EQ(failed, 0);
  params.check_bound = 0;
  params.load.isa = "";
  rows = 0;
  EXPECT_EQ(run_bench(params, hooks), detect_isa() == Isa::scalar ? 0 : 2);
  EXPECT_EQ(failed, detect_isa() == Isa::scalar ? 0 : 2);
}

}  // namespace
}  // namespace ridge::lab
