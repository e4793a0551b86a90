// The collective bench on GPUs: rows that are checked and timed, and what it refuses.
#include "lab/op/collective_bench.h"

#include <gmock/gmock.h>

#include "gpu/device_query.h"
#include "gpu/nccl.h"
#include "op/collective/collective.h"

namespace ridge::lab {
namespace {

using testing::HasSubstr;

class CollectiveBenchCuda : public testing::Test {
 protected:
  void SetUp() override {
    const size_t n = gpu::query_devices().devices.size();
    if (n < 2) GTEST_SKIP() << "there are " << n << " devices, two are needed";
  }
};

TEST_F(CollectiveBenchCuda, RowsAreCheckedAndTimed) {
  const CollectiveBenchParams params{.bytes = {4, 5000},
                                     .devices = {1, 0},
                                     .kernels = {"all"},
                                     .replays = 2,
                                     .max_seconds = 0.2,
                                     .roof_bytes = 1 << 20};
  std::vector<CollectiveRow> rows;
  std::vector<std::string> skipped;
  CollectiveHooks hooks;
  hooks.on_row = [&](const CollectiveRow& row) { rows.push_back(row); };
  hooks.on_skipped = [&](const std::string& kernel, const std::string&) { skipped.push_back(kernel); };
  EXPECT_EQ(run_collective_bench_on_gpus(params, hooks), 0);
  EXPECT_EQ(rows.size() / params.bytes.size() + skipped.size(), all_reduce_variants(1, 2).size());
  for (const CollectiveRow& row : rows) {
    EXPECT_TRUE(row.check.passed());
    EXPECT_EQ(row.check.metric, "wrong sums");
    EXPECT_EQ(row.seconds.size(), 2u);
    EXPECT_GT(row.calls, 0);
    EXPECT_GT(row.link_gb_s, 0);
    EXPECT_EQ(collective_columns().fields(row)["device"], "cuda:1,0");
  }
}

TEST_F(CollectiveBenchCuda, RefusesUnknownKernelsAndTakesTheModelsOne) {
  CollectiveBenchParams params{.bytes = {64}, .devices = {0, 1}, .kernels = {"tree"}, .replays = 1, .roof_bytes = 64};
  try {
    run_collective_bench_on_gpus(params, {});
    ADD_FAILURE() << "tree was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no kernel 'tree' (there are: nccl, two-shot, one-shot)"));
  }
  params.kernels.clear();
  std::string kernel;
  CollectiveHooks hooks;
  hooks.on_row = [&](const CollectiveRow& row) { kernel = row.kernel; };
  EXPECT_EQ(run_collective_bench_on_gpus(params, hooks), 0);
  EXPECT_EQ(kernel, "one-shot");
}

}  // namespace
}  // namespace ridge::lab
