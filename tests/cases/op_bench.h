// Benches of ops on small problems, for the tests of both kinds of device.
#pragma once

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "lab/op/op_bench.h"

namespace ridge::lab {

inline OpBenchParams small(Op op) {
  OpBenchParams params{.op = op, .head_dim = 64};
  params.heads = {{4, 2}};
  params.seq = {200};
  params.batch = {2};
  params.shapes = {{70, 256}};
  params.replays = 2;
  params.max_seconds = 1;
  params.max_sets = 3;
  params.roof_bytes = 4 << 20;
  params.n_threads = 2;
  return params;
}

struct Found {
  int n_failed = 0;
  std::vector<OpRow> rows;
  std::vector<std::string> skipped, predicted;
};

inline Found run(const OpBenchParams& params, std::span<const OpKernel> table = op_kernels()) {
  Found found;
  OpBenchHooks hooks;
  hooks.on_predicted = [&](const OpRow& row) {
    EXPECT_TRUE(row.seconds.empty());
    EXPECT_GT(row.predicted_us(), 0);
    found.predicted.push_back(row.kernel);
  };
  hooks.on_row = [&](const OpRow& row) { found.rows.push_back(row); };
  hooks.on_skipped = [&](const OpProblem& problem, const std::string& why) {
    found.skipped.push_back(problem.format_text() + ": " + why);
  };
  found.n_failed = run_op_bench(params, table, hooks);
  return found;
}

/// Every row has passed its check and has its samples.
inline void expect_timed(const Found& found) {
  EXPECT_EQ(found.n_failed, 0);
  EXPECT_EQ(found.predicted.size(), found.rows.size());
  for (const OpRow& row : found.rows) {
    EXPECT_TRUE(row.check.passed()) << row.problem.shape_text() << " " << row.problem.format_text() << " " << row.kernel
                                    << ": " << row.check.error << " > " << row.check.bound;
    EXPECT_EQ(row.seconds.size(), 2u);
    EXPECT_GT(row.gb_s(), 0);
    EXPECT_GT(row.pct_of_roof(), 0);
    EXPECT_GE(row.sets.n, 1);
  }
}

}  // namespace ridge::lab
