#include "lab/decide/allocate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>

#include "base/check.h"

namespace ridge::lab {
namespace {

constexpr double kEqual = 1e-12;  // costs that differ by less, relatively, are equal

/// A step from one option of an item to a heavier one that costs less.
struct Step {
  double weight = 0, saving = 0;
  int item = 0, option = 0;
  double rate() const { return saving / weight; }
};

/// Options that are worth taking when weight may be cut in pieces: the lower convex hull, from the lightest on.
std::vector<int> hull_of(const std::vector<AllocationOption>& options) {
  std::vector<int> order(options.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int(i);
  std::ranges::sort(order, [&](int a, int b) {
    const AllocationOption &x = options[size_t(a)], &y = options[size_t(b)];
    return std::tuple(x.weight, x.cost, a) < std::tuple(y.weight, y.cost, b);
  });
  const auto at = [&](int i) -> const AllocationOption& { return options[size_t(i)]; };
  std::vector<int> hull;
  for (const size_t i : lower_hull(
           order, [&](int i) { return at(i).weight; }, [&](int i) { return at(i).cost; }))
    hull.push_back(order[i]);
  return hull;
}

/// Lower bound on the cost of the items from `first` on: their steps in the order of their rates, with sums.
class Rest {
 public:
  Rest(std::span<const std::vector<AllocationOption>> items, size_t first) {
    for (size_t i = first; i < items.size(); ++i) {
      const std::vector<int> hull = hull_of(items[i]);
      const AllocationOption& lightest = items[i][size_t(hull[0])];
      least_weight_ += lightest.weight;
      most_cost_ += lightest.cost;
      for (size_t h = 1; h < hull.size(); ++h) {
        const AllocationOption &from = items[i][size_t(hull[h - 1])], &to = items[i][size_t(hull[h])];
        steps_.push_back({to.weight - from.weight, from.cost - to.cost, int(i), hull[h]});
      }
    }
    // Steps of one item stay in order: their rates fall.
    std::ranges::stable_sort(steps_, [](const Step& a, const Step& b) { return a.rate() > b.rate(); });
    double weight = 0, saving = 0;
    for (const Step& step : steps_) {
      weights_.push_back(weight += step.weight);
      savings_.push_back(saving += step.saving);
    }
  }
  double least_weight() const { return least_weight_; }
  const std::vector<Step>& steps() const { return steps_; }
  /// With so much weight in all (least_weight() or more), the last step cut where it must be.
  double least_cost(double weight) const {
    const double spare = weight - least_weight_;
    const auto n = size_t(std::ranges::upper_bound(weights_, spare) - weights_.begin());
    const double taken = n == 0 ? 0 : weights_[n - 1], saved = n == 0 ? 0 : savings_[n - 1];
    const double part = n < steps_.size() ? (spare - taken) * steps_[n].rate() : 0;
    return most_cost_ - saved - part;
  }

 private:
  double least_weight_ = 0, most_cost_ = 0;
  std::vector<Step> steps_;
  std::vector<double> weights_, savings_;  // sums up to and including each step
};

/// Sums of the first items.
struct State {
  double cost = 0, weight = 0;
  int32_t from = -1, option = -1;  // the state of the items before, and what was added
};

/// Only states than which none is both lighter and cheaper, from the lightest on.
void drop_dominated(std::vector<State>& states) {
  std::ranges::sort(states, [](const State& a, const State& b) {
    return std::tuple(a.weight, a.cost, a.from, a.option) < std::tuple(b.weight, b.cost, b.from, b.option);
  });
  double least = std::numeric_limits<double>::infinity();
  std::erase_if(states, [&](const State& state) {
    if (state.cost >= least) return true;
    least = state.cost;
    return false;
  });
}

AllocationChoice with_sums(std::span<const std::vector<AllocationOption>> items, std::vector<int> options) {
  AllocationChoice choice{.options = std::move(options)};
  for (size_t i = 0; i < items.size(); ++i) {
    choice.cost += items[i][size_t(choice.options[i])].cost;
    choice.weight += items[i][size_t(choice.options[i])].weight;
  }
  return choice;
}

/// The lightest options, then steps by their rates for as long as there is room.
AllocationChoice greedy(std::span<const std::vector<AllocationOption>> items, const Rest& all, double limit) {
  std::vector<int> options;
  for (const std::vector<AllocationOption>& item : items) options.push_back(hull_of(item)[0]);
  std::vector<bool> closed(items.size(), false);
  double spare = limit - all.least_weight();
  for (const Step& step : all.steps()) {
    if (closed[size_t(step.item)]) continue;
    if (step.weight > spare) {
      closed[size_t(step.item)] = true;
      continue;
    }
    options[size_t(step.item)] = step.option;
    spare -= step.weight;
  }
  return with_sums(items, std::move(options));
}

}  // namespace

std::optional<AllocationChoice> allocate(std::span<const std::vector<AllocationOption>> items, double limit) {
  for (const std::vector<AllocationOption>& item : items) RIDGE_CHECK(!item.empty(), "an item without options");
  std::vector<Rest> rests;
  for (size_t i = 0; i <= items.size(); ++i) rests.emplace_back(items, i);
  const double slack = 1e-9 * std::max(1.0, std::abs(limit));  // what sums in another order may differ by
  if (rests[0].least_weight() > limit + slack) return std::nullopt;
  AllocationChoice best = greedy(items, rests[0], limit);

  std::vector<std::vector<State>> stages{{State{}}};
  for (size_t i = 0; i < items.size(); ++i) {
    const Rest& rest = rests[i + 1];
    std::vector<State> next;
    for (size_t s = 0; s < stages.back().size(); ++s) {
      const State& state = stages.back()[s];
      for (size_t o = 0; o < items[i].size(); ++o) {
        const State sum{state.cost + items[i][o].cost, state.weight + items[i][o].weight, int32_t(s), int32_t(o)};
        if (sum.weight + rest.least_weight() > limit + slack) continue;
        const double bound = sum.cost + rest.least_cost(std::max(limit - sum.weight, rest.least_weight()));
        if (bound >= best.cost * (1 - kEqual)) continue;
        next.push_back(sum);
      }
    }
    drop_dominated(next);
    if (next.empty()) return best;  // nothing can be better
    stages.push_back(std::move(next));
  }
  // The last state is the cheapest one, and cheaper than what was known.
  std::vector<int> options(items.size());
  auto at = int32_t(stages.back().size() - 1);
  for (size_t i = items.size(); i-- > 0;) {
    const State& state = stages[i + 1][size_t(at)];
    options[i] = state.option;
    at = state.from;
  }
  return with_sums(items, std::move(options));
}

}  // namespace ridge::lab
