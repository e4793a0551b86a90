// One option for every item, of least cost within a limit of weight: a multiple-choice knapsack, solved exactly.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace ridge::lab {

struct AllocationOption {
  double cost = 0, weight = 0;  ///< finite, not negative
};

/// The option of every item. Sums of cost and weight are those of plain addition in the order of the items; solutions
/// whose costs differ by less than 1e-12 of the least one count as equal.
struct AllocationChoice {
  std::vector<int> options;
  double cost = 0, weight = 0;
};

/// The least cost with a weight of at most `limit`; nothing where even the lightest options are too heavy. Dynamic
/// programming over undominated sums, cut where the relaxed rest cannot beat the best solution known: exact, and quick
/// for hundreds of items with a handful of options.
std::optional<AllocationChoice> allocate(std::span<const std::vector<AllocationOption>> items, double limit);

/// Points that no mix of two others undercuts: the falling part of the lower convex hull, as indices in rising order.
/// The points come in rising order of x, those of equal x in rising order of y.
template <class Points, class X, class Y>
std::vector<size_t> lower_hull(const Points& points, const X& x, const Y& y) {
  std::vector<size_t> hull;
  for (size_t i = 0; i < points.size(); ++i) {
    if (!hull.empty() && y(points[i]) >= y(points[hull.back()])) continue;
    while (hull.size() >= 2) {
      const auto &a = points[hull[hull.size() - 2]], &b = points[hull.back()];
      if ((y(a) - y(b)) * (x(points[i]) - x(b)) > (y(b) - y(points[i])) * (x(b) - x(a))) break;
      hull.pop_back();
    }
    hull.push_back(i);
  }
  return hull;
}

}  // namespace ridge::lab
