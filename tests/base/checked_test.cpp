// Checked arithmetic at the edges of 64 bits.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/checked.h"

namespace ridge {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(Checked, AddAndMulStopAtTheEdge) {
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
  EXPECT_EQ(checked_mul(1ull << 32, (1ull << 32) - 1), 0xFFFFFFFF00000000ull);
  EXPECT_EQ(checked_mul(1ull << 32, 1ull << 32), std::nullopt);
  EXPECT_EQ(checked_mul(kMax, 0), 0u);
}

TEST(Checked, ProductRefusesNegativeAndOverflowingDimensions) {
  const auto product = [](std::vector<int64_t> dims) { return checked_product(dims); };
  EXPECT_EQ(product({}), 1);
  EXPECT_EQ(product({3, 0, 5}), 0);
  EXPECT_EQ(product({3, 4, 5}), 60);
  EXPECT_EQ(product({-1}), std::nullopt);
  EXPECT_EQ(product({-1, -1}), std::nullopt);
  EXPECT_EQ(product({0, -1}), std::nullopt);
  EXPECT_EQ(product({INT64_MAX, 1}), INT64_MAX);
  EXPECT_EQ(product({int64_t(1) << 32, int64_t(1) << 31}), std::nullopt);
}

TEST(Checked, AlignRoundsUpOrNothing) {
  EXPECT_EQ(checked_align(0, 32), 0u);
  EXPECT_EQ(checked_align(1, 32), 32u);
  EXPECT_EQ(checked_align(32, 32), 32u);
  EXPECT_EQ(checked_align(33, 3), 33u);
  EXPECT_EQ(checked_align(kMax - 30, 32), std::nullopt);
  EXPECT_EQ(checked_align(kMax - 31, 32), kMax - 31);
}

TEST(Checked, SpanFitsWithoutOverflow) {
  EXPECT_TRUE(span_fits(0, 0, 0));
  EXPECT_TRUE(span_fits(10, 0, 10));
  EXPECT_TRUE(span_fits(4, 6, 10));
  EXPECT_FALSE(span_fits(4, 7, 10));
  EXPECT_FALSE(span_fits(11, 0, 10));
  EXPECT_FALSE(span_fits(kMax, 2, 10));
  EXPECT_FALSE(span_fits(2, kMax, 10));
}

}  // namespace
}  // namespace ridge
