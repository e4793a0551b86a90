// The allocation of options to items against all combinations, and at the size of large models.
#include "lab/decide/allocate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/rng.h"

namespace ridge::lab {
namespace {

using Items = std::vector<std::vector<AllocationOption>>;

/// Heavier options mostly cost less, by amounts that differ from item to item.
Items random_items(int n, int n_options, uint64_t seed, bool whole_weights) {
  Rng rng(seed);
  Items items(static_cast<size_t>(n));
  for (auto& item : items) {
    const double sensitivity = std::exp(3 * rng.normal());
    for (int o = 0; o < n_options; ++o) {
      const double weight = whole_weights ? std::floor(10 + 50 * rng.uniform()) : 10 + 50 * rng.uniform();
      item.push_back({sensitivity * std::exp(-weight / 10) * (0.5 + rng.uniform()), weight});
    }
  }
  return items;
}

/// Every combination.
std::optional<double> least_cost(const Items& items, double limit) {
  std::optional<double> least;
  std::vector<size_t> at(items.size(), 0);
  for (;;) {
    double cost = 0, weight = 0;
    for (size_t i = 0; i < items.size(); ++i) cost += items[i][at[i]].cost, weight += items[i][at[i]].weight;
    if (weight <= limit + 1e-9 * limit && (!least || cost < *least)) least = cost;
    size_t i = 0;
    while (i < items.size() && ++at[i] == items[i].size()) at[i++] = 0;
    if (i == items.size()) return least;
  }
}

TEST(Allocate, IsTheBestOfAllCombinations) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const bool whole = seed % 2 == 0;
    const Items items = random_items(int(3 + seed % 4), int(2 + seed % 4), seed, whole);
    for (const double share : {0.1, 0.3, 0.5, 0.7, 1.0}) {
      const double limit = double(items.size()) * (12 + 48 * share);
      const auto expected = least_cost(items, limit);
      const auto found = allocate(items, limit);
      ASSERT_EQ(found.has_value(), expected.has_value()) << seed << " " << share;
      if (!found) continue;
      EXPECT_NEAR(found->cost, *expected, 1e-11 * *expected) << seed << " " << share;
      EXPECT_LE(found->weight, limit * (1 + 1e-9));
    }
  }
}

TEST(Allocate, SaysWhenNothingFits) {
  EXPECT_FALSE(allocate(Items{{{1, 5}, {0, 6}}, {{1, 5}}}, 9));
  EXPECT_EQ(allocate(Items{{{1, 5}, {0, 6}}, {{1, 5}}}, 10)->options, (std::vector<int>{0, 0}));
  EXPECT_EQ(allocate(Items{{{1, 5}, {0, 6}}, {{1, 5}}}, 11)->options, (std::vector<int>{1, 0}));
  EXPECT_TRUE(allocate(Items{}, 0)->options.empty());
}

TEST(Allocate, GreedyIsNotEnough) {
  // By rates the first item's step comes first and leaves no room for the second one's, which saves more.
  const Items items{{{10, 0}, {4, 5}}, {{10, 0}, {1, 10}}};
  EXPECT_EQ(allocate(items, 10)->options, (std::vector<int>{0, 1}));
}

TEST(Allocate, TakesAHundredLayers) {
  // Two sides of 100 layers, five formats; sizes as rows have them.
  for (const uint64_t seed : {1, 2, 3}) {
    Rng rng(seed);
    Items items(200);
    for (auto& item : items) {
      const double sensitivity = std::exp(2 * rng.normal());
      for (const double bytes : {96.0, 100.0, 132.0, 272.0, 512.0})
        item.push_back({bytes == 512 ? 0 : sensitivity * std::exp2(-bytes / 16) * (0.7 + rng.uniform()), bytes});
    }
    for (const double mean : {98.0, 110.0, 130.0, 200.0}) {
      const auto found = allocate(items, 200 * mean);
      ASSERT_TRUE(found);
      EXPECT_LE(found->weight, 200 * mean);
      EXPECT_GT(found->weight, 200 * mean - 512);  // the limit is used
    }
  }
}

}  // namespace
}  // namespace ridge::lab
