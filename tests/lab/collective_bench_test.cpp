#include "lab/op/collective_bench.h"

#include <gmock/gmock.h>

#include <mutex>

#include "cases/thread_ranks.h"

namespace ridge::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(CollectiveBench, CpuRanksAreCheckedAndTimed) {
  const CollectiveBenchParams params{
      .bytes = {4, 4000, 100'000}, .replays = 3, .max_seconds = 0.05, .roof_bytes = 1 << 16};
  for (const int n : {2, 3}) {
    std::vector<CollectiveRow> rows;
    on_ranks(n, [&](Ranks& ranks) {
      CollectiveHooks hooks;
      hooks.on_row = [&](const CollectiveRow& row) { rows.push_back(row); };  // of the first rank only
      EXPECT_EQ(run_collective_bench_on_cpu(ranks, params, hooks), 0);
    });
    ASSERT_EQ(rows.size(), 3u);
    for (const CollectiveRow& row : rows) {
      EXPECT_TRUE(row.check.passed());
      EXPECT_EQ(row.seconds.size(), 3u);
      EXPECT_GT(row.calls, 0);
      EXPECT_GT(row.gb_s(), 0);
      EXPECT_GT(row.link_gb_s, 0);
      const Row fields = collective_columns().fields(row);
      EXPECT_EQ(fields["kind"], "collective");
      EXPECT_EQ(fields["n_ranks"], n);
      EXPECT_EQ(fields["device"], "cpu");
      EXPECT_EQ(fields["samples_us"].size(), 3u);
      EXPECT_THAT(collective_columns().line(row), HasSubstr(fmt::format("| {} | {} | ranks |", n, row.bytes)));
    }
  }
}

TEST(CollectiveBench, EveryRankStopsWhenTheFirstOneDoes) {
  int n_rows = 0;
  on_ranks(2, [&](Ranks& ranks) {
    CollectiveHooks hooks;
    hooks.stop = [&] { return ranks.is_first() && n_rows == 1; };
    hooks.on_row = [&](const CollectiveRow&) { ++n_rows; };
    const CollectiveBenchParams params{.bytes = {4, 8, 12}, .replays = 1, .max_seconds = 0.01, .roof_bytes = 64};
    run_collective_bench_on_cpu(ranks, params, hooks);
  });
  EXPECT_EQ(n_rows, 1);
}

TEST(CollectiveBench, AWrongSumIsCounted) {
  std::vector<float> sums;
  for (int64_t i = 0; i < 100; ++i)
    sums.push_back(collective_value(0, i, 7) + collective_value(1, i, 7) + collective_value(2, i, 7));
  EXPECT_TRUE(check_collective(sums, 3, 7).passed());
  sums[40] += 1;
  sums[99] = NAN;
  const OpCheck check = check_collective(sums, 3, 7);
  EXPECT_FALSE(check.passed());
  EXPECT_EQ(check.error, 2);
  CollectiveRow row = collective_row("one-shot", 3, 400, 1, {});
  row.check = check;
  EXPECT_THAT(collective_columns().line(row), HasSubstr("FAILED"));
}

TEST(CollectiveBench, WhatARankMustSendIsHeldAgainstTheLink) {
  CollectiveRow row = collective_row("one-shot", 4, 1'000'000, 3, {});
  row.seconds = {1e-3, 1e-3};
  EXPECT_DOUBLE_EQ(row.gb_s(), 1.5);
  EXPECT_DOUBLE_EQ(row.pct_of_link(), 50);
}

TEST(CollectiveBench, SizesAreOfWholeFloats) {
  EXPECT_EQ(collective_sizes({}).front(), 4096);
  EXPECT_EQ(collective_sizes({}).back(), 8 << 20);
  EXPECT_THAT(collective_sizes({.bytes = {8, 4}}), ElementsAre(8, 4));
  EXPECT_THROW(collective_sizes({.bytes = {6}}), Error);
}

TEST(CollectiveBench, TurnsFitTheTime) {
  const CollectiveBenchParams params{.replays = 60, .max_seconds = 1};
  const CollectiveTurns fast = collective_turns(1e-6, 1, params), slow = collective_turns(0.1, 2, params);
  EXPECT_EQ(fast.calls, 1024);
  EXPECT_EQ(fast.samples, 60);
  EXPECT_EQ(slow.calls, 1);
  EXPECT_EQ(slow.samples, 5);
}

}  // namespace
}  // namespace ridge::lab
