#include "op/experts/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace ridge {
namespace {

std::vector<Route> routes_of(std::vector<float> scores, int n_experts, int n_used, bool renormalised) {
  CpuContext context(1);
  const int64_t n = ssize(scores) / n_experts;
  std::vector<Route> routes(size_t(n * n_used));
  choose_experts(context, View2<const float>(scores.data(), n, n_experts), n_used, renormalised, routes);
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

}  // namespace
}  // namespace ridge
