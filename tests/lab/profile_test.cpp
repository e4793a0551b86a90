#include "lab/model/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "gpu/kernel_times.h"
#include "gpu/launch_log.h"
#include "lab/op/cpu_counters.h"

namespace ridge::lab {
namespace {

using testing::HasSubstr;

OpCall call(std::string_view op, std::string what, double start_us, double us, int64_t read_bytes = 0) {
  return {.op = op,
          .what = std::move(what),
          .kernel = "k",
          .layer = 0,
          .work = {read_bytes, 0, 0},
          .start_us = start_us,
          .us = us,
          .counters = {}};
}

/// `scale` times: 3 us of gemv twice, 2 us of attention, 2 us between them.
ProfiledStep step(double scale) {
  return {.start_us = 0,
          .us = 10 * scale,
          .calls = {call("gemv", "a", 0, 3 * scale, 1000), call("attention", "", 4 * scale, 2 * scale, 500),
                    call("gemv", "a", 6 * scale, 3 * scale, 3000)}};
}

TEST(Profile, PartsAndGapsAddUpToTheStep) {
  const Attribution a = attribute({step(1)});
  EXPECT_EQ(a.n_steps, 1);
  EXPECT_DOUBLE_EQ(a.step_us, 10);
  EXPECT_DOUBLE_EQ(a.parts_us, 8);
  EXPECT_DOUBLE_EQ(a.gap_us(), 2);
  ASSERT_EQ(a.parts.size(), 2u);
  EXPECT_EQ(a.parts[0].name(), "gemv a");
  EXPECT_DOUBLE_EQ(a.parts[0].us, 6);
  EXPECT_DOUBLE_EQ(a.parts[0].calls, 2);
  EXPECT_EQ(a.parts[0].work.read_bytes, 4000);
  EXPECT_EQ(a.parts[1].name(), "attention");
  EXPECT_DOUBLE_EQ(a.calls, 3);
  EXPECT_EQ(a.work.read_bytes, 4500);
}

TEST(Profile, TheMiddleHalfOfTheStepsIsAveraged) {
  // By duration: 1 | 2 3 4 5 | 100 loses a quarter at each end.
  const Attribution a = attribute({step(100), step(4), step(1), step(2), step(3), step(5)});
  EXPECT_EQ(a.n_steps, 4);
  EXPECT_DOUBLE_EQ(a.step_us, 35);
  EXPECT_DOUBLE_EQ(a.parts_us + a.gap_us(), a.step_us);
  EXPECT_EQ(a.parts[0].work.read_bytes, 4000) << "work is a step's, however many were averaged";
  EXPECT_DOUBLE_EQ(a.median_us, 35);
}

TEST(Profile, NoStepsGiveNothing) { EXPECT_EQ(attribute({}).n_steps, 0); }

TEST(Profile, ABoundIsTheCeilingThatExplainsTheTime) {
  const ProfileCeilings ceilings{.read_gb_s = 100, .int8_gop_s = 1000, .float_gop_s = 500, .cache_bytes = 0};
  ProfilePart part{
      .op = "gemv", .kernel = "panel-2planes-avx2", .us = 10, .work = {900'000, 0, 0}};  // 9 us at memory bandwidth
  EXPECT_EQ(part_bound(part, ceilings), "memory");
  part.work.read_bytes = 300'000;
  EXPECT_EQ(part_bound(part, ceilings), "latency");
  part.work.flops = 2'500'000;  // 2.5 us as bytes, 5 us as floats
  EXPECT_EQ(part_bound(part, ceilings), "latency");
  part.kernel = "rows-avx2";
  EXPECT_EQ(part_bound(part, ceilings), "compute");
  EXPECT_EQ(part_bound(part, {}), "latency") << "no ceiling explains anything";
}

/// Two steps of embed, a product of two kernels and a launch outside of any op.
gpu::LaunchLog two_steps() {
  gpu::LaunchLog log;
  for (int i = 0; i < 2; ++i) {
    gpu::LaunchLog one;
    one.ops = {{.op = "embed", .what = {}}, {.op = "gemv", .what = "8x4 f16", .layer = 3, .read_bytes = 64}};
    one.launches = {{"embed", 0}, {"quantise", 1}, {"int_gemv", 1}, {"copy", -1}};
    log.append(one);
  }
  return log;
}
std::vector<gpu::KernelTime> eight_times() {
  std::vector<gpu::KernelTime> times;
  for (int i = 0; i < 8; ++i) times.push_back({"", 10.0 * i, 10.0 * i + 4});
  return times;
}

TEST(DeviceSteps, KernelsGoToTheOpsThatLaunchedThem) {
  const auto steps = device_steps(two_steps(), eight_times()).or_throw();
  ASSERT_EQ(steps.size(), 1u) << "nobody knows what ran before the first";
  const ProfiledStep& s = steps[0];
  EXPECT_DOUBLE_EQ(s.start_us, 34) << "the end of the kernel before";
  EXPECT_DOUBLE_EQ(s.us, 40);
  ASSERT_EQ(s.calls.size(), 4u);
  EXPECT_EQ(s.calls[1].op, "gemv");
  EXPECT_EQ(s.calls[1].layer, 3);
  EXPECT_EQ(s.calls[1].work.read_bytes, 64);
  EXPECT_EQ(s.calls[2].kernel, "int_gemv");
  EXPECT_EQ(s.calls[2].work.read_bytes, 0) << "an op's work counts once";
  EXPECT_EQ(s.calls[3].op, "other");
  EXPECT_DOUBLE_EQ(s.parts_us(), 16);
}

TEST(DeviceSteps, AnOpsLongestKernelHasItsWork) {
  auto times = eight_times();
  times[6].end_us += 2;
  const auto steps = device_steps(two_steps(), times).or_throw();
  EXPECT_EQ(steps[0].calls[1].work.read_bytes, 0);
  EXPECT_EQ(steps[0].calls[2].work.read_bytes, 64);
  EXPECT_EQ(steps[0].calls[3].work.read_bytes, 0) << "a launch outside of any op";
}

TEST(DeviceSteps, KernelsThatOverlapStillAddUp) {
  auto times = eight_times();
  times[6].start_us = times[5].start_us;  // started with the one before
  const auto steps = device_steps(two_steps(), times).or_throw();
  EXPECT_DOUBLE_EQ(steps[0].calls[2].us, 10);
  EXPECT_LE(steps[0].parts_us(), steps[0].us);
}

TEST(DeviceSteps, ADifferentNumberOfKernelsIsRefused) {
  auto times = eight_times();
  times.pop_back();
  const auto steps = device_steps(two_steps(), times);
  ASSERT_FALSE(steps);
  EXPECT_THAT(steps.error().message, HasSubstr("8 kernels were launched and 7 were timed"));
}

TEST(LaunchLog, RangesNameTheLaunchesInsideAndNothingIsKeptWhenNobodyLogs) {
  const auto op = [] { return gpu::LoggedOp{.op = "norm", .what = {}, .layer = 1}; };
  gpu::LaunchLog log;
  {
    const gpu::LogLaunches on(&log);
    gpu::log_launch("before");
    {
      const gpu::OpRange range(op);
      gpu::log_launch("inside");
    }
    gpu::log_launch("behind");
  }
  {
    const gpu::OpRange range(op);
    gpu::log_launch("unseen");
  }
  ASSERT_EQ(log.ops.size(), 1u);
  ASSERT_EQ(log.launches.size(), 3u);
  EXPECT_EQ(log.launches[0].op, -1);
  EXPECT_EQ(log.launches[1].op, 0);
  EXPECT_EQ(log.launches[2].op, -1);
  EXPECT_EQ(gpu::launch_log(), nullptr);
}

TEST(Profile, TraceEventsNestOpsUnderLayers) {
  ProfiledStep s = step(1);
  s.start_us = 100;
  for (OpCall& c : s.calls) c.start_us += 100;
  s.calls[2].layer = 1;
  const Row trace = trace_events(s, "title");
  int layers = 0, ops = 0;
  double last_end = 0;
  for (const Row& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["ts"].get<double>(), 0);
    (event["tid"] == 1 ? layers : ops)++;
    last_end = std::max(last_end, event["ts"].get<double>() + event["dur"].get<double>());
  }
  EXPECT_EQ(layers, 2);
  EXPECT_EQ(ops, 3);
  EXPECT_LE(last_end, s.us);
}

TEST(Profile, AModelsPartsHaveItsBytesAndFillTheStep) {
  ProfileParams params;
  params.model = "synth:tiny@weights=q4_0";
  params.n_depth = 100;
  params.n_steps = 8;
  const std::optional<Profile> p = run_profile(params, {});
  ASSERT_TRUE(p);
  const Attribution& a = p->attribution;
  EXPECT_GT(a.gap_us(), 0);
  EXPECT_LT(a.gap_us(), a.step_us);
  int64_t products = 0, attention = 0;
  double calls = 0;
  for (const ProfilePart& part : a.parts) {
    if (part.op == "gemv") products += part.work.read_bytes, calls += part.calls;
    if (part.op == "attention") attention += part.work.read_bytes;
  }
  const bool panels = detect_isa() > Isa::scalar;  // whose kernels take matrices of one input together
  EXPECT_DOUBLE_EQ(calls, (panels ? 4 : 7) * p->model.n_layers + 1);
  // What the session declares at depth 100, up to 2 + 16 more rows by the last step, and inputs of products and
  // queries.
  const ModelInfo& m = p->model;
  const double q_dim = m.n_heads * m.head_dim, inputs = (panels ? 2 : 5) * m.d_model + q_dim + m.d_ff + q_dim;
  const double declared = double(p->step_read_bytes) + 4 * (m.n_layers * inputs + m.d_model);
  const double grown = 18.0 * double(p->cache.bytes_per_token());
  EXPECT_GE(double(products + attention), declared);
  EXPECT_LE(double(products + attention), declared + grown);
  const Row row = profile_columns().fields(*p);
  double share = row["gap_us"].get<double>() / row["step_us"].get<double>();
  for (const Row& part : row["parts"]) share += part["share"].get<double>();
  EXPECT_NEAR(share, 1, 1e-9);
  EXPECT_THAT(profile_markdown(*p), HasSubstr("| the step |"));
  EXPECT_TRUE(p->check.passed);
  EXPECT_EQ(row["checked"], true);
  EXPECT_LT(row["check_error"].get<double>(), row["check_bound"].get<double>());
}

TEST(Profile, AModelThatFailsItsCheckHasNoTimes) {
  ProfileParams params;
  params.model = "synth:tiny@weights=q4_0";
  params.check_bound = 0;
  try {
    run_profile(params, {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::gate);
    EXPECT_THAT(e.what(), HasSubstr("no times are given"));
  }
  params.check = false;
  params.n_steps = 4;
  EXPECT_EQ(profile_columns().fields(*run_profile(params, {}))["checked"], false);
}

TEST(Profile, APromptsChunkRunsGemm) {
  ProfileParams params;
  params.model = "synth:tiny";
  params.n_prompt = 40;
  params.n_steps = 2;
  const std::optional<Profile> p = run_profile(params, {});
  ASSERT_TRUE(p);
  int64_t flops = 0;
  for (const ProfilePart& part : p->attribution.parts)
    if (part.op == "gemm") flops += part.work.flops;
  EXPECT_GT(flops, 40 * 2 * p->model.d_model);
  EXPECT_EQ(profile_columns().fields(*p)["phase"], "prefill");
}

TEST(CpuCounters, CountOrSayWhyNot) {
  const Result<CpuCounters> counters = CpuCounters::open();
  if (!counters) {
    EXPECT_THAT(counters.error().message, HasSubstr("no counters: "));
    GTEST_SKIP() << counters.error().message;
  }
  const OpCounters before = counters.value().read();
  volatile int64_t sum = 0;
  for (int i = 0; i < 1'000'000; ++i) sum = sum + i;
  const OpCounters spent = counters.value().read() - before;
  EXPECT_GT(spent.instructions, 1'000'000);
  EXPECT_GT(spent.cycles, 0);
}

TEST(Profile, CountersOfCallsAreAveragedAsTheirTimesAre) {
  ProfiledStep s = step(1);
  s.calls[0].counters = {100, 300, 7};
  s.calls[2].counters = {50, 100, 1};
  const Attribution a = attribute({s, s, s});
  EXPECT_EQ(a.parts[0].counters.cycles, 150);
  EXPECT_EQ(a.parts[0].counters.instructions, 400);
  EXPECT_EQ(a.parts[0].counters.cache_misses, 8);
}

TEST(Profile, StopsWhenAsked) {
  ProfileParams params;
  params.model = "synth:tiny";
  EXPECT_FALSE(run_profile(params, {.stop = [] { return true; }}));
}

}  // namespace
}  // namespace ridge::lab
