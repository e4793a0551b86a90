#include "lab/op/ceilings.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ridge::lab {
namespace {

constexpr int64_t kMib = 1 << 20, kGib = 1 << 30;

TEST(Ceilings, BuffersAreFourCachesAndAtLeastAGib) {
  EXPECT_EQ(choose_stream_size(32 * kMib, 64 * kGib).bytes, kGib);
  EXPECT_EQ(choose_stream_size(512 * kMib, 64 * kGib).bytes, 2 * kGib);
  EXPECT_EQ(choose_stream_size(0, 64 * kGib).bytes, kGib);
}

TEST(Ceilings, LittleMemoryCutsTheBuffersAndSaysSo) {
  const StreamSize size = choose_stream_size(260 * kMib, 2 * kGib);
  EXPECT_EQ(size.bytes, 256 * kMib);
  EXPECT_NE(size.why.find("caches may flatter"), std::string::npos);
}

TEST(Ceilings, QuartilesOfKnownSamples) {
  const Spread s = spread({5, 1, 4, 2, 3});
  EXPECT_EQ(s.median, 3);
  EXPECT_EQ(s.lower, 2);
  EXPECT_EQ(s.upper, 4);
  EXPECT_EQ(s.min, 1);
  EXPECT_EQ(s.max, 5);
  EXPECT_EQ(spread({}).median, 0);
}

TEST(Ceilings, NaNSamplesGiveNaNNotAFigure) {
  EXPECT_TRUE(std::isnan(spread({1, NAN, 3}).median));
  EXPECT_TRUE(std::isnan(spread({1, -3}).max));
}

TEST(Ceilings, EveryStreamIsMeasuredAndReported) {
  const Ceilings ceilings = measure_ceilings({.n_threads = 2, .bytes = 8 * kMib, .repeats = 3});
  ASSERT_GE(ceilings.streams.size(), 4u);
  for (const StreamResult& stream : ceilings.streams) {
    EXPECT_GT(stream.gb_s.median, 0) << stream.name;
    EXPECT_EQ(stream.repeats, 3) << stream.name;
  }
  EXPECT_GE(ceilings.read_gb_s(), ceilings.streams[0].gb_s.median);
  EXPECT_EQ(ceiling_columns().fields(ceilings)["streams"].size(), ceilings.streams.size());
}

TEST(Ceilings, CachesAndRatesAreMeasuredWithTheirRidgePoints) {
  const Ceilings ceilings = measure_ceilings({.n_threads = 2, .bytes = 8 * kMib, .repeats = 3, .max_seconds = 1});
  for (const CacheResult& cache : ceilings.caches) EXPECT_GT(cache.stream.gb_s.max, 0) << cache.level;
  ASSERT_EQ(ceilings.rates.size(), 4u);
  for (const RateResult& rate : ceilings.rates) {
    EXPECT_NE(rate.kernel.empty(), rate.why_not.empty()) << rate.number << ": a rate, or why there is none";
    EXPECT_EQ(rate.kernel.empty(), rate.repeats == 0) << rate.number;
    EXPECT_EQ(rate.kernel.empty(), std::isnan(rate.ridge_op_per_byte(10))) << rate.number;
  }
  const Row row = ceiling_columns().fields(ceilings);
  EXPECT_EQ(row["caches"].size(), ceilings.caches.size());
  EXPECT_EQ(row["rates"][0]["number"], "f32");
  EXPECT_NEAR(row["rates"][0]["ridge_op_per_byte"].get<double>(), ceilings.rates[0].gop_s.max / ceilings.read_gb_s(),
              1e-9);
}

TEST(Ceilings, ScalarCodeHasNoF16) {
  const Ceilings ceilings =
      measure_ceilings({.n_threads = 1, .isa = "scalar", .bytes = 4 * kMib, .repeats = 3, .max_seconds = 1});
  ASSERT_EQ(ceilings.rates.size(), 4u);
  EXPECT_EQ(ceilings.rates[1].kernel, "int8-ref");
  EXPECT_EQ(ceilings.rates[2].kernel, "");
  EXPECT_NE(ceilings.rates[2].why_not.find("avx512"), std::string::npos);
  EXPECT_TRUE(ceiling_columns().fields(ceilings)["rates"][2]["max_gop_s"].is_null());
}

TEST(Ceilings, ACachesBufferIsHalfAThreadsShare) {
  MachineInfo machine;
  machine.caches = {{1, "Data", 32 << 10, "0"},
                    {1, "Instruction", 64 << 10, "0"},
                    {2, "Unified", 1 << 20, "0"},
                    {3, "Unified", 32 << 20, "0-7"}};
  EXPECT_EQ(cache_buffer_bytes(machine, 1, 2), 16 << 10);
  EXPECT_EQ(cache_buffer_bytes(machine, 2, 2), 512 << 10);
  EXPECT_EQ(cache_buffer_bytes(machine, 3, 2), 8 << 20);
  EXPECT_EQ(cache_buffer_bytes(machine, 3, 16), 0) << "as much as the level below holds";
  EXPECT_EQ(cache_buffer_bytes({}, 1, 2), 0);
}

TEST(RateResult, TheRidgeIsWhereArithmeticTakesAsLongAsReading) {
  RateResult rate{.number = "f32", .kernel = "k"};
  rate.gop_s.max = 300;
  EXPECT_EQ(rate.ridge_op_per_byte(30), 10);
  EXPECT_TRUE(std::isnan(rate.ridge_op_per_byte(0)));
}

TEST(Ceilings, ReadOnlyMeasuresOneStream) {
  const Ceilings ceilings =
      measure_ceilings({.n_threads = 1, .isa = "scalar", .bytes = 4 * kMib, .repeats = 3, .read_only = true});
  ASSERT_EQ(ceilings.streams.size(), 1u);
  EXPECT_EQ(ceilings.kernel, "ref");
}

}  // namespace
}  // namespace ridge::lab
