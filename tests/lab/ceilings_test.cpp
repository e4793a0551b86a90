#include "lab/ceilings.h"

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
  EXPECT_EQ(to_row(ceilings)["streams"].size(), ceilings.streams.size());
}

TEST(Ceilings, ReadOnlyMeasuresOneStream) {
  const Ceilings ceilings =
      measure_ceilings({.n_threads = 1, .isa = "scalar", .bytes = 4 * kMib, .repeats = 3, .read_only = true});
  ASSERT_EQ(ceilings.streams.size(), 1u);
  EXPECT_EQ(ceilings.kernel, "ref");
}

}  // namespace
}  // namespace ridge::lab
