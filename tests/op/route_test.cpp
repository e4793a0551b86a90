#include "op/experts/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/rng.h"

namespace ridge {
namespace {

std::vector<Route> routes_of(std::vector<float> scores, int n_experts, int n_used, bool renormalised) {
  CpuContext context(1);
  const int64_t n = ssize(scores) / n_experts;
  std::vector<Route> routes(size_t(n * n_used));
  choose_experts(context, View2<const float>(scores.data(), n, n_experts),
                 {.n_used = n_used, .renormalised = renormalised}, nullptr, routes);
  return routes;
}

TEST(ChooseExperts, TheLikeliestWithTheirShares) {
  Rng rng(1);
  for (const int n_experts : {1, 2, 7, 128})
    for (const int n_used : {1, 2, 8})
      for (const bool renormalised : {false, true}) {
        if (n_used > n_experts) continue;
        std::vector<float> scores(size_t(3 * n_experts));
        for (float& s : scores) s = float(3 * rng.normal());
        const std::vector<Route> routes = routes_of(scores, n_experts, n_used, renormalised);
        for (size_t t = 0; t < 3; ++t) {
          const std::span row = std::span(scores).subspan(t * size_t(n_experts), size_t(n_experts));
          std::vector<int> order(row.size());
          std::iota(order.begin(), order.end(), 0);
          std::ranges::stable_sort(order, [&](int a, int b) { return row[size_t(a)] > row[size_t(b)]; });
          order.resize(size_t(n_used));
          double total = 0;
          for (size_t i = 0; i < row.size(); ++i)
            if (!renormalised || std::ranges::count(order, int(i))) total += std::exp(double(row[i]));
          std::ranges::sort(order);
          for (size_t i = 0; i < size_t(n_used); ++i) {
            const Route& route = routes[t * size_t(n_used) + i];
            EXPECT_EQ(route.expert, order[i]);
            EXPECT_NEAR(route.weight, std::exp(double(row[size_t(order[i])])) / total, 1e-6);
          }
        }
      }
}

/// Ernie's rule: probabilities of 0.2, 0.3 and 0.5 with a bias that lifts the first above the second.
TEST(ChooseExperts, ABiasIsBesideTheProbabilitiesOfASoftmax) {
  CpuContext context(1);
  const std::vector<float> scores = {std::log(0.2f) + 7, std::log(0.3f) + 7, std::log(0.5f) + 7};
  for (const auto& [lift, chosen] : {std::pair(0.11f, 0), {0.09f, 1}}) {
    const std::vector<float> bias = {lift, 0, 0};
    std::vector<Route> routes(2);
    choose_experts(context, View2<const float>(scores.data(), 1, 3), {.n_used = 2, .renormalised = true}, bias.data(),
                   routes);
    EXPECT_EQ(routes[0].expert, chosen);
    EXPECT_EQ(routes[1].expert, 2);
    EXPECT_NEAR(routes[0].weight, chosen == 0 ? 0.2 / 0.7 : 0.3 / 0.8, 1e-6) << "weights are without the bias";
  }
}

TEST(ChooseExperts, OfEquallyLikelyOnesTheLowerNumber) {
  const std::vector<Route> routes = routes_of({1, 2, 2, 2, 1, 0}, 6, 2, true);
  EXPECT_EQ(routes[0].expert, 1);
  EXPECT_EQ(routes[1].expert, 2);
  EXPECT_FLOAT_EQ(routes[0].weight, 0.5f);
}

TEST(ChooseExperts, LargeScoresStayFinite) {
  const std::vector<Route> routes = routes_of({1000, -1000, 999, 0}, 4, 2, false);
  EXPECT_NEAR(routes[0].weight + routes[1].weight, 1, 1e-6);
  EXPECT_EQ(routes[1].expert, 2);
}

/// DeepSeek-V3's rule, plainly: every group and expert compared with every other.
TEST(ChooseExperts, FromTheBestGroupsByBiasedSigmoids) {
  constexpr int kExperts = 24, kGroups = 6, kSize = kExperts / kGroups;
  Rng rng(2);
  CpuContext context(1);
  for (int trial = 0; trial < 200; ++trial) {
    const ExpertRule rule{.n_used = 3 + trial % 4,
                          .renormalised = trial % 2 == 0,
                          .sigmoid = true,
                          .n_groups = kGroups,
                          .n_groups_used = 2 + trial % 3,
                          .scale = 2.5f};
    std::vector<float> scores(kExperts), bias(kExperts);
    for (float& s : scores) s = float(2 * rng.normal());
    for (float& b : bias) b = float(rng.normal() - 1);  // choices may be negative
    std::vector<Route> routes(size_t(rule.n_used));
    choose_experts(context, View2<const float>(scores.data(), 1, kExperts), rule, bias.data(), routes);

    const auto weight = [&](int e) { return 1 / (1 + std::exp(-double(scores[size_t(e)]))); };
    const auto choice = [&](int e) { return weight(e) + bias[size_t(e)]; };
    const auto group_value = [&](int g) {
      std::vector<double> values;
      for (int e = g * kSize; e < (g + 1) * kSize; ++e) values.push_back(choice(e));
      std::ranges::sort(values, std::greater());
      return values[0] + values[1];
    };
    const auto competes = [&](int e) {
      int better = 0;
      for (int g = 0; g < kGroups; ++g) better += group_value(g) > group_value(e / kSize);
      return better < rule.n_groups_used;
    };
    std::vector<int> expected;
    double total = 0;
    for (int e = 0; e < kExperts; ++e) {
      int better = 0;
      for (int other = 0; other < kExperts; ++other) better += competes(other) && choice(other) > choice(e);
      if (competes(e) && better < rule.n_used) expected.push_back(e), total += weight(e);
    }
    ASSERT_EQ(ssize(expected), rule.n_used);
    for (size_t i = 0; i < routes.size(); ++i) {
      EXPECT_EQ(routes[i].expert, expected[i]) << "trial " << trial;
      EXPECT_NEAR(routes[i].weight, 2.5 * weight(expected[i]) / (rule.renormalised ? total : 1), 1e-5);
    }
  }
}

/// DeepSeek-V2's rule: a group is as good as its best expert, though two of another add up to more.
TEST(ChooseExperts, FromTheGroupsOfTheBestUnderASoftmax) {
  CpuContext context(1);
  const std::vector<float> scores{1.9f, 1.8f, 2, -9, -9, 1.7f};  // groups of two
  std::vector<Route> routes(2);
  choose_experts(context, View2<const float>(scores.data(), 1, 6),
                 {.n_used = 2, .n_groups = 3, .n_groups_used = 1, .scale = 3}, nullptr, routes);
  double total = 0;
  for (const float s : scores) total += std::exp(double(s));
  EXPECT_EQ(routes[0].expert, 2);
  EXPECT_EQ(routes[1].expert, 3);
  EXPECT_NEAR(routes[0].weight, 3 * std::exp(2.0) / total, 1e-6);
  EXPECT_NEAR(routes[1].weight, 3 * std::exp(-9.0) / total, 1e-6);
}

TEST(ChooseExperts, SigmoidsOfNothingStayFinite) {
  CpuContext context(1);
  const std::vector<float> scores{-200, -200, -200, -200};
  std::vector<Route> routes(2);
  choose_experts(context, View2<const float>(scores.data(), 1, 4), {.n_used = 2, .renormalised = true, .sigmoid = true},
                 nullptr, routes);
  EXPECT_EQ(routes[0].weight, 0);
  EXPECT_EQ(routes[1].weight, 0);
}

}  // namespace
}  // namespace ridge
