// Op benches on the CPU: every kernel passes its check on small problems, and a planted error gets no times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cases/op_bench.h"
#include "lab/op/cpu_timer.h"

namespace ridge::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

void expect_all_timed(const Found& found) {
  expect_timed(found);
  for (const OpRow& row : found.rows) EXPECT_EQ(row.sets.n, 3);
}

std::vector<std::string> kernels_of(const Found& found, std::string_view format) {
  std::vector<std::string> names;
  for (const OpRow& row : found.rows)
    if (row.problem.format_text() == format) names.push_back(row.kernel);
  return names;
}

TEST(OpBenchCpu, EveryMatmulOfEveryFormatPasses) {
  OpBenchParams params = small(Op::gemv);
  params.batch = {1, 5};
  params.kernels = {"all"};
  for (const WeightFormat& format : weight_formats()) params.weights.push_back(&format);
  const Found found = run(params);
  expect_all_timed(found);
  for (const WeightFormat& format : weight_formats())
    EXPECT_GE(kernels_of(found, format.name).size(), 2u) << format.name;  // the reference at least, for both batches
  EXPECT_TRUE(found.rows.at(0).device.is_cpu());
  EXPECT_EQ(found.rows.at(0).device.n_threads, 2);
}

TEST(OpBenchCpu, TheTwoOpBaselineIsMeasuredWhenNamedAndStatesItsTraffic) {
  OpBenchParams params = small(Op::gemv);
  params.weights = {find_weight_format("int4_g128").or_throw()};
  params.batch = {1, 3};
  EXPECT_THAT(kernels_of(run(params), "int4_g128"), testing::Each(testing::Ne("two-op")));
  params.kernels = {"two-op", "ref"};
  const Found found = run(params);
  expect_all_timed(found);
  EXPECT_THAT(kernels_of(found, "int4_g128"), ElementsAre("two-op", "ref", "two-op", "ref"));
  EXPECT_EQ(found.rows[0].moved_bytes, int64_t(found.rows[0].bytes()) + 2 * 4 * 70 * 256);
  EXPECT_EQ(found.rows[1].moved_bytes, int64_t(found.rows[1].bytes()));
  EXPECT_GT(found.rows[0].predicted_us(), found.rows[1].predicted_us());
}

TEST(OpBenchCpu, MatmulsHaveTheNamesOfTheTables) {
  OpBenchParams params = small(Op::gemv);
  params.weights = {find_weight_format("q8_0").or_throw()};
  params.isa = "scalar";
  params.kernels = {"all"};
  params.batch = {1};
  EXPECT_THAT(kernels_of(run(params), "q8_0"), testing::Contains("ref"));
  params.weights = {find_weight_format("i2_s").or_throw()};
  params.kernels = {};
  EXPECT_THAT(kernels_of(run(params), "i2_s"), ElementsAre("ternary-ref")) << "the best, and what models use";
}

TEST(OpBenchCpu, AttentionOverEveryFormatPasses) {
  OpBenchParams params = small(Op::attention);
  params.seq = {40, 333};
  params.kernels = {"all"};
  for (const KvFormat& format : kv_formats()) params.kv.push_back(parse_kv_choice(std::string(format.name)).or_throw());
  params.kv.push_back(parse_kv_choice("q8_0/rotor-3:window=32:sinks=2").or_throw());
  params.kv.push_back(parse_kv_choice("p8:centre=on/q4_0:centre=on").or_throw());
  const Found found = run(params);
  expect_all_timed(found);
  EXPECT_GE(found.rows.size(), 2 * params.kv.size());
}

/// Rows of a pool come round, and what the rounding of weights errs by with them; heads differ in how sharp they look.
TEST(OpBenchCpu, AttentionBehindManyRepeatedRowsPasses) {
  OpBenchParams params = small(Op::attention);
  params.heads = {{14, 2}};
  params.seq = {8192, 32768};
  params.batch = {1};
  params.kv = parse_kv_list("p8/q4_0,f16/q4_0").or_throw();
  const Found found = run(params);
  expect_all_timed(found);
  EXPECT_EQ(found.rows.size(), 4u);
}

void expect_right(const Found& found) {
  EXPECT_EQ(found.n_failed, 0);
  for (const OpRow& row : found.rows)
    EXPECT_TRUE(row.check.passed()) << row.problem.shape_text() << " " << row.problem.format_text() << " "
                                    << row.kernel;
}

TEST(OpBenchCpu, AppendsOfEveryFormatPass) {
  OpBenchParams params = small(Op::append);
  params.seq = {70};
  params.kernels = {"all"};
  params.replays = 1;
  params.max_sets = 2;
  for (const KvFormat& format : kv_formats()) params.kv.push_back(parse_kv_choice(std::string(format.name)).or_throw());
  const Found found = run(params);
  expect_right(found);
  EXPECT_GT(found.rows.size(), params.kv.size()) << "formats that round weighted have two kernels";
}

TEST(OpBenchCpu, AppendsOfSomeTokensPassAtTheBeginningAndBehindAWindow) {
  OpBenchParams params = small(Op::append);
  params.n_new = {5, 40};
  params.seq = {1, 333};
  params.batch = {1};
  params.max_sets = 2;
  params.replays = 1;
  params.kv = parse_kv_list("f16,rotor-3:window=0:sinks=2/rotor-4:window=64").or_throw();
  expect_right(run(params));
}

TEST(OpBenchCpu, WhatWasAskedForAndHasNoKernelIsAnErrorWithTheReason) {
  OpBenchParams params = small(Op::gemv);
  params.weights = {find_weight_format("f16").or_throw()};
  const std::string panels = fmt::format("panel-2planes-{}", isa_name(isas().back()));
  params.kernels = {panels};
  try {
    run(params);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr(panels));
  }
  params.weights = {};
  params.batch = {1};
  params.kernels = {"ternary-ref"};
  const Found found = run(params);
  EXPECT_THAT(kernels_of(found, "i2_s"), ElementsAre("ternary-ref"));
  EXPECT_EQ(found.skipped.size(), 3u) << "f32, f16 and int4_g128 of the default list";
}

TEST(OpBenchCpu, MemoryThatIsNotThereIsAnError) {
  OpKernel kernel = op_kernels()[0];
  for (const OpKernel& k : op_kernels())
    if (k.on_cpu() && k.op == Op::gemv && k.name == "ref") kernel = k;
  kernel.set_bytes = [](const OpProblem&) { return int64_t(1) << 60; };
  try {
    run(small(Op::gemv), {&kernel, 1});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::no_memory);
  }
}

/// Right, or wrong from call number `wrong_from` on.
class Planted : public CpuOpRun {
 public:
  explicit Planted(int wrong_from) : wrong_from_(wrong_from) {}
  void call(int) override { wrong_ = wrong_ || n_calls_++ >= wrong_from_; }
  OpCheck check(int) override { return {.metric = "different", .error = wrong_ ? 1.0 : 0.0, .bound = 0}; }

 private:
  int wrong_from_, n_calls_ = 0;
  bool wrong_ = false;
};
OpKernel planted(std::string_view name, int wrong_from) {
  return {.op = Op::gemv,
          .name = name,
          .supports = [](const OpProblem&, const OpDevice&) { return Support{}; },
          .set_bytes = [](const OpProblem&) { return int64_t(4096); },
          .open_cpu = [=](const OpProblem&, CpuContext&, int, uint64_t) -> std::unique_ptr<CpuOpRun> {
            return std::make_unique<Planted>(wrong_from);
          }};
}

TEST(OpBenchCpu, APlantedErrorGetsNoTimesAndTheOthersDo) {
  const OpKernel table[] = {planted("right", 1 << 30), planted("wrong", 0), planted("wrong-later", 1)};
  OpBenchParams params = small(Op::gemv);
  params.weights = {find_weight_format("f32").or_throw()};
  params.batch = {1};
  params.kernels = {"all"};
  const Found found = run(params, table);
  EXPECT_EQ(found.n_failed, 2);
  ASSERT_EQ(found.rows.size(), 3u);
  EXPECT_FALSE(found.rows[0].failed());
  EXPECT_EQ(found.rows[0].seconds.size(), 2u);
  EXPECT_TRUE(found.rows[1].failed());
  EXPECT_FALSE(found.rows[1].after_replays);
  EXPECT_TRUE(found.rows[1].seconds.empty());
  EXPECT_TRUE(found.rows[2].failed());
  EXPECT_TRUE(found.rows[2].after_replays);
  EXPECT_TRUE(found.rows[2].seconds.empty());
}

TEST(OpBenchCpu, StopsBeforeTheNextProblem) {
  OpBenchHooks hooks;
  int rows = 0;
  hooks.stop = [] { return true; };
  hooks.on_row = [&](const OpRow&) { ++rows; };
  EXPECT_EQ(run_op_bench(small(Op::gemv), op_kernels(), hooks), 0);
  EXPECT_EQ(rows, 0);
}

TEST(CpuTimer, TakesSetsInTurnAndAlternatesWorks) {
  std::vector<int> order;
  int prepared = 0;
  const auto work = [&](int number, int n_sets) {
    return CpuWork{.n_sets = n_sets,
                   .call = [&, number](int set) { order.push_back(10 * number + set); },
                   .prepare = [&](int, int calls) { prepared += calls; },
                   .most_calls = 2,
                   .calls_multiple = 2};
  };
  const CpuWork works[] = {work(1, 3), work(2, 2)};
  const auto times = time_on_cpu(works, {.replays = 3, .min_replay_seconds = 1e9, .max_seconds = 1e12});
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0].calls, 2);
  EXPECT_EQ(times[0].seconds.size(), 3u);
  ASSERT_GE(order.size(), 12u);
  order.erase(order.begin(), order.end() - 12);  // calls that chose how many make a sample
  EXPECT_THAT(order, ElementsAre(10, 11, 20, 21, 12, 10, 20, 21, 11, 12, 20, 21));
  EXPECT_GE(prepared, 12);
}

TEST(CpuTimer, SamplesAreLongEnoughAndEndInTime) {
  int calls = 0;
  const CpuWork work{.call = [&](int) { ++calls; }};
  const auto times = time_on_cpu({&work, 1}, {.replays = 4, .min_replay_seconds = 0, .max_calls = 64});
  EXPECT_EQ(times[0].calls, 1);
  EXPECT_EQ(times[0].seconds.size(), 4u);
  const auto stopped = time_on_cpu({&work, 1}, {.replays = 4, .stop = [] { return true; }});
  EXPECT_TRUE(stopped[0].seconds.empty());
}

}  // namespace
}  // namespace ridge::lab
