// Weighted rounding: every kernel equals the reference, an identity metric changes nothing, and the cost only falls.
#include "op/cache/rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "base/rng.h"

namespace ridge {
namespace {

constexpr float kLevels3[] = {-2.1519143f, -1.3439092f, -0.7560054f, -0.2451275f,
                              0.2451275f,  0.7560054f,  1.3439092f,  2.1519143f};

std::vector<float> normal_values(Rng& rng, size_t n) {
  std::vector<float> values(n);
  for (float& v : values) v = float(rng.normal());
  return values;
}

/// A^T A / n + ridge * I with n samples: symmetric, positive definite, far from the identity when n is small.
std::vector<float> random_metric(Rng& rng, int dim, int n, float ridge) {
  const std::vector<float> samples = normal_values(rng, size_t(n) * size_t(dim));
  std::vector<float> metric(size_t(dim) * size_t(dim), 0.0f);
  for (int s = 0; s < n; ++s)
    for (int i = 0; i < dim; ++i)
      for (int j = 0; j < dim; ++j)
        metric[size_t(i * dim + j)] += samples[size_t(s * dim + i)] * samples[size_t(s * dim + j)] / float(n);
  for (int i = 0; i < dim; ++i) metric[size_t(i * dim + i)] += ridge;
  return metric;
}

double cost(const std::vector<float>& u, const std::vector<float>& metric, const uint8_t* codes) {
  const size_t dim = u.size();
  double total = 0;
  for (size_t i = 0; i < dim; ++i)
    for (size_t j = 0; j < dim; ++j)
      total += (double(u[i]) - kLevels3[codes[i]]) * metric[i * dim + j] * (double(u[j]) - kLevels3[codes[j]]);
  return total;
}

TEST(WeightedRounding, IdentityMetricIsNearestRounding) {
  Rng rng(1);
  constexpr int kDim = 64;
  std::vector<float> metric(kDim * kDim, 0.0f);
  for (size_t i = 0; i < kDim; ++i) metric[i * kDim + i] = 1;
  const std::vector<float> u = normal_values(rng, kDim);
  RoundedRow rounded;
  round_weighted(u.data(), metric.data(), kDim, kLevels3, 8, rounded);
  for (size_t i = 0; i < kDim; ++i) {
    for (const float level : kLevels3) EXPECT_LE(std::abs(u[i] - kLevels3[rounded.codes[i]]), std::abs(u[i] - level));
    EXPECT_EQ(rounded.pull[i], u[i]);
    EXPECT_EQ(rounded.residual[i], u[i] - kLevels3[rounded.codes[i]]);
  }
}

TEST(WeightedRounding, CostsLessThanNearestUnderTheMetric) {
  Rng rng(2);
  constexpr int kDim = 128;
  double weighted = 0, nearest = 0;
  for (int trial = 0; trial < 8; ++trial) {
    const std::vector<float> metric = random_metric(rng, kDim, 48, 0.05f), u = normal_values(rng, kDim);
    std::vector<float> identity(kDim * kDim, 0.0f);
    for (size_t i = 0; i < kDim; ++i) identity[i * kDim + i] = 1;
    RoundedRow a, b;
    round_weighted(u.data(), metric.data(), kDim, kLevels3, 8, a);
    round_weighted(u.data(), identity.data(), kDim, kLevels3, 8, b);
    EXPECT_LE(cost(u, metric, a.codes), cost(u, metric, b.codes));
    weighted += cost(u, metric, a.codes);
    nearest += cost(u, metric, b.codes);
  }
  EXPECT_LT(weighted, 0.5 * nearest);  // 48 directions of 128 are seen: most of the error can hide in the others
}

TEST(WeightedRounding, EveryKernelEqualsTheReference) {
  CpuContext context(1);
  for (const RoundRowVariant& variant : kv_round_variants()) {
    if (variant.isa > context.isa) continue;
    for (const int dim : {64, 128, 192, 256, 1024}) {
      ASSERT_TRUE(variant.supports(dim).ok);
      Rng rng(uint64_t(dim) + 7);
      const std::vector<float> metric = random_metric(rng, dim, dim > 256 ? 16 : dim / 2, 0.1f);
      std::vector<float> u = normal_values(rng, size_t(dim));
      u[0] = 40;  // far outside the levels
      u[1] = 0;
      auto expected = std::make_unique<RoundedRow>(), got = std::make_unique<RoundedRow>();
      for (const int count : {8, 16}) {
        float levels[16];
        for (int i = 0; i < count; ++i) levels[i] = -2.7f + 5.4f * float(i) / float(count - 1);
        round_weighted(u.data(), metric.data(), dim, levels, count, *expected);
        variant.run(u.data(), metric.data(), dim, levels, count, *got);
        for (size_t i = 0; i < size_t(dim); ++i) {
          ASSERT_EQ(got->codes[i], expected->codes[i]) << variant.name << " dim " << dim << " at " << i;
          ASSERT_EQ(got->pull[i], expected->pull[i]) << variant.name << " dim " << dim << " at " << i;
          ASSERT_EQ(got->residual[i], expected->residual[i]) << variant.name << " dim " << dim << " at " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ridge
