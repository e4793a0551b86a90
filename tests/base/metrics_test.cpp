// The error metrics against closed forms, and at zeros, NaN and infinity.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/metrics.h"
#include "ridge/error.h"

namespace ridge {
namespace {

TEST(Compare, ClosedForms) {
  const std::vector<float> expected = {3, 4}, actual = {3, 5};
  const Comparison c = compare(actual, expected);
  EXPECT_DOUBLE_EQ(c.nmse, 1.0 / 25);
  EXPECT_DOUBLE_EQ(c.cosine, 29 / (5 * std::sqrt(34.0)));
  EXPECT_DOUBLE_EQ(c.norm_ratio, std::sqrt(34.0) / 5);
  EXPECT_EQ(c.max_abs, 1);
  EXPECT_EQ(c.worst_index, 1u);
  EXPECT_TRUE(c.same_nonfinite);
}

TEST(Compare, EqualVectorsAndZeroVectors) {
  const std::vector<float> x = {1, -2, 3}, zero(3, 0.0f);
  const Comparison same = compare(x, x), both_zero = compare(zero, zero), from_zero = compare(x, zero),
                   to_zero = compare(zero, x);
  EXPECT_EQ(same.nmse, 0);
  EXPECT_DOUBLE_EQ(same.cosine, 1);
  EXPECT_EQ(both_zero.nmse, 0);
  EXPECT_EQ(both_zero.cosine, 1);
  EXPECT_EQ(both_zero.norm_ratio, 1);
  EXPECT_EQ(from_zero.nmse, 14) << "without a signal the error is absolute";
  EXPECT_EQ(from_zero.cosine, 0);
  EXPECT_TRUE(std::isinf(from_zero.norm_ratio));
  EXPECT_EQ(to_zero.nmse, 1);
  EXPECT_EQ(to_zero.norm_ratio, 0);
}

TEST(Compare, NanAndInfinityMustStandAtTheSamePlaces) {
  const std::vector<float> a = {1, NAN, INFINITY, -INFINITY, 5};
  EXPECT_TRUE(compare(a, a).same_nonfinite);
  for (size_t i = 0; i < a.size(); ++i)
    for (const float other : {NAN, INFINITY, -INFINITY, 2.0f}) {
      std::vector<float> b = a;
      b[i] = other;
      const bool same =
          std::isnan(other) ? std::isnan(a[i]) : a[i] == other || (std::isfinite(a[i]) && std::isfinite(other));
      EXPECT_EQ(compare(b, a).same_nonfinite, same) << i << " " << other;
      EXPECT_EQ(compare(a, b).same_nonfinite, same) << i << " " << other;
      if (!same) {
        EXPECT_EQ(compare(b, a).worst_index, i);
      }
    }
}

TEST(Compare, DifferentSizesAreOurBug) {
  const std::vector<float> a(3), b(4);
  EXPECT_THROW(compare(a, b), Error);
  EXPECT_THROW(kl_divergence(a, b), Error);
  EXPECT_THROW(log_sum_exp({}), Error);
}

TEST(LogSumExp, ClosedFormsAndNoOverflow) {
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector<float>{0, 0, 0, 0}), std::log(4.0));
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector<float>{1000, 1000}), 1000 + std::log(2.0));
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector<float>{-1e30f, 7}), 7);
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector<float>{-INFINITY, 7}), 7);
}

TEST(KlDivergence, ClosedForms) {
  // P = (3/4, 1/4), Q = (1/2, 1/2)
  const std::vector<float> p = {std::log(3.0f), 0}, q = {5, 5};
  EXPECT_NEAR(kl_divergence(p, q), 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
  EXPECT_NEAR(kl_divergence(q, p), 0.5 * std::log(2 / 3.0) + 0.5 * std::log(2.0), 1e-7);
  EXPECT_NEAR(kl_divergence(p, p), 0, 1e-15);
  EXPECT_DOUBLE_EQ(kl_divergence(p, log_sum_exp(p), q, log_sum_exp(q)), kl_divergence(p, q));
}

TEST(KlDivergence, ImpossibleTokensCostNothingWhenTheBaseNeverTakesThem) {
  const std::vector<float> p = {std::log(3.0f), 0, -INFINITY}, q = {5, 5, -INFINITY}, q_wide = {5, 5, 5};
  EXPECT_NEAR(kl_divergence(p, q), 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
  EXPECT_TRUE(std::isfinite(kl_divergence(p, q_wide)));
  EXPECT_TRUE(std::isinf(kl_divergence(q_wide, p)));
  EXPECT_TRUE(std::isnan(kl_divergence(std::vector<float>{NAN, 0, 1}, q_wide)));
}

}  // namespace
}  // namespace ridge
