// The vector building blocks against their scalar definitions.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "cases/guarded.h"
#include "op/gemv/panels.h"
#include "op/simd_entries.h"

namespace ridge {
namespace {

/// 32 activations in integers: two planes, of which the second may be unused.
struct Group {
  std::array<int8_t, 2 * kPanelGroup> q;
  float scale;
  std::array<int32_t, 2> sum;
};

Group reference(std::span<const float> x, int planes) {
  Group group{};
  quantize_group_ref(x.data(), planes, kPanelGroup, group.q.data(), group.scale, group.sum.data());
  return group;
}

/// Quantises one group with the entry, in guarded buffers, and with the reference; expects equal bits.
void expect_equal_quantisation(const SimdEntries& entry, std::span<const float> x, const std::string& what) {
  for (const int planes : {1, 2}) {
    Guarded<float> in(kPanelGroup, 1, x), scale(1, 1);
    Guarded<int8_t> q(planes * kPanelGroup, 3);
    Guarded<int32_t> sum(2, 1);
    entry.quantize_group[planes - 1](in.data(), kPanelGroup, q.data(), scale[0], sum.data());
    const Group expected = reference(x, planes);
    ASSERT_TRUE(q.intact() && scale.intact() && sum.intact()) << what;
    ASSERT_EQ(std::bit_cast<uint32_t>(scale[0]), std::bit_cast<uint32_t>(expected.scale)) << what;
    for (int i = 0; i < 2; ++i) ASSERT_EQ(sum[i], expected.sum[size_t(i)]) << what;
    for (int i = 0; i < planes * kPanelGroup; ++i)
      ASSERT_EQ(q[i], expected.q[size_t(i)]) << what << " element " << i << " " << x[size_t(i % kPanelGroup)];
  }
}

TEST(QuantizeGroup, EqualsTheScalarDefinitionOnRandomData) {
  for (const SimdEntries& entry : runnable_entries())
    for (const Fill kind : kFills)
      for (int seed = 0; seed < 200; ++seed)
        expect_equal_quantisation(entry, random_floats(uint64_t(seed), kPanelGroup, kind),
                                  std::string(fill_name(kind)));
}

TEST(QuantizeGroup, RoundsTiesToEven) {
  // 127 fixes the scale of one plane at exactly 1, so k + 0.5 is a tie.
  for (const SimdEntries& entry : runnable_entries())
    for (int first = -127; first < 127; first += 16) {
      std::vector<float> x(kPanelGroup, 127.0f);
      for (int i = 0; i < 16; ++i) x[size_t(2 * i)] = float(std::clamp(first + i, -127, 126)) + 0.5f;
      expect_equal_quantisation(entry, x, "ties");
    }
  std::vector<float> x(kPanelGroup, 0.0f);
  x[31] = 127, x[0] = 0.5f, x[1] = 1.5f, x[2] = -0.5f, x[3] = -2.5f, x[4] = 126.5f;
  const Group group = reference(x, 1);
  EXPECT_EQ(group.scale, 1.0f);
  for (const auto& [i, code] : {std::pair{0, 0}, {1, 2}, {2, 0}, {3, -2}, {4, 126}, {31, 127}})
    EXPECT_EQ(group.q[size_t(i)], code) << i;
}

TEST(QuantizeGroup, TwoPlanesAreEveryIntegerOf15BitsOnce) {
  // 16319 fixes the scale at 1: x is its own code, 128 * first + second.
  for (int first = -16319; first <= 16319; first += kPanelGroup - 1) {
    std::vector<float> x(kPanelGroup, 16319.0f);
    for (int i = 0; i < kPanelGroup - 1; ++i) x[size_t(i)] = float(std::min(first + i, 16319));
    for (const SimdEntries& entry : runnable_entries()) expect_equal_quantisation(entry, x, "all codes");
    const Group group = reference(x, 2);
    ASSERT_EQ(group.scale, 1.0f);
    for (int i = 0; i < kPanelGroup; ++i)
      ASSERT_EQ(128 * group.q[size_t(i)] + group.q[size_t(kPanelGroup + i)], int(x[size_t(i)]));
  }
}

TEST(QuantizeGroup, FindsTheLargestInEveryLane) {
  for (const SimdEntries& entry : runnable_entries())
    for (int lane = 0; lane < kPanelGroup; ++lane)
      for (const float top : {-9.0f, 9.0f, 1e-30f, 3e38f}) {
        std::vector<float> x = random_floats(7, kPanelGroup);
        for (float& value : x) value *= std::abs(top) / 20;
        x[size_t(lane)] = top;
        expect_equal_quantisation(entry, x, fmt::format("lane {} top {}", lane, top));
      }
}

TEST(QuantizeGroup, SurvivesGroupsSmallerThanAnInvertibleFloat) {
  for (const SimdEntries& entry : runnable_entries())
    for (const float top :
         {0.0f, -0.0f, 1.4e-45f, 1e-40f, 1.1754944e-38f, 1e-37f, 3.7e-37f, 3.8e-37f, 1e-36f, 4.9e-35f, 5.1e-35f}) {
      std::vector<float> x(kPanelGroup, 0.0f);
      x[5] = top;
      x[6] = -top / 3;
      expect_equal_quantisation(entry, x, fmt::format("top {}", top));
      for (const int planes : {1, 2}) {
        const Group group = reference(x, planes);
        for (int i = 0; i < kPanelGroup; ++i) {
          const int code =
              planes == 1 ? group.q[size_t(i)] : 128 * group.q[size_t(i)] + group.q[size_t(kPanelGroup + i)];
          EXPECT_LE(std::abs(double(code) * group.scale - x[size_t(i)]),
                    std::max(std::abs(top) * (planes == 1 ? 0.005 : 0.00004), planes == 1 ? 4e-37 : 5e-35))
              << top << " element " << i;
        }
      }
    }
}

TEST(QuantizeGroup, NonFiniteActivationsGiveANanScale) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()})
    for (int lane = 0; lane < kPanelGroup; ++lane)
      for (const int planes : {1, 2}) {
        std::vector<float> x = random_floats(3, kPanelGroup);
        x[size_t(lane)] = bad;
        EXPECT_TRUE(std::isnan(reference(x, planes).scale)) << lane;
        for (const SimdEntries& entry : runnable_entries()) {
          Group group{};
          entry.quantize_group[planes - 1](x.data(), kPanelGroup, group.q.data(), group.scale, group.sum.data());
          EXPECT_TRUE(std::isnan(group.scale)) << isa_name(entry.isa) << " lane " << lane;
        }
      }
}

TEST(VectorExp, RelativeErrorBelow1p5e7OverTheWholeRange) {
  for (const SimdEntries& entry : runnable_entries()) {
    constexpr int64_t kPoints = 1 << 20;
    std::vector<float> x(kPoints), y(kPoints);
    for (int64_t i = 0; i < kPoints; ++i) x[size_t(i)] = float(-87.0 + 175.0 * double(i) / (kPoints - 1));
    entry.exp(x.data(), kPoints, y.data());
    double worst = 0;
    for (int64_t i = 0; i < kPoints; ++i) {
      const double expected = std::exp(double(x[size_t(i)]));
      worst = std::max(worst, std::abs(y[size_t(i)] - expected) / expected);
    }
    EXPECT_LT(worst, 1.5e-7) << isa_name(entry.isa);
    EXPECT_GT(worst, 0) << "the comparison must see rounding";
  }
}

TEST(VectorExp, ClampsOutsideTheRange) {
  for (const SimdEntries& entry : runnable_entries()) {
    std::vector<float> x(16, -1e30f), y(16);
    x[1] = -87.5f, x[2] = 88.5f, x[3] = 1e30f, x[4] = 0;
    entry.exp(x.data(), 16, y.data());
    EXPECT_NEAR(y[0] / std::exp(-87.0), 1, 1e-6);
    EXPECT_EQ(y[1], y[0]);
    EXPECT_NEAR(y[2] / std::exp(88.0), 1, 1e-6);
    EXPECT_EQ(y[3], y[2]);
    EXPECT_EQ(y[4], 1.0f);
  }
}

TEST(SumEach, PutsEachRowsSumInItsLane) {
  for (const SimdEntries& entry : runnable_entries()) {
    const int n = entry.lanes;
    std::vector<float> rows(size_t(n * n)), sums(size_t(n), 0.0f);
    for (int i = 0; i < n * n; ++i) rows[size_t(i)] = float((i * 37) % 101);  // small integers: exact in any order
    entry.sum_each(rows.data(), sums.data());
    for (int i = 0; i < n; ++i) {
      float expected = 0;
      for (int j = 0; j < n; ++j) expected += rows[size_t(i * n + j)];
      EXPECT_EQ(sums[size_t(i)], expected) << isa_name(entry.isa) << " lane " << i;
    }
  }
}

}  // namespace
}  // namespace ridge
