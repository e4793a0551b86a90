#include "op/experts/route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "op/trace.h"

namespace ridge {
namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();

/// Values of all experts but those of the best groups become kOut.
void keep_best_groups(const ExpertRule& rule, std::span<float> values) {
  const size_t size = values.size() / size_t(rule.n_groups);
  std::vector<std::pair<float, size_t>> groups;  // minus the group's value: the best in front
  for (size_t g = 0; g < size_t(rule.n_groups); ++g) {
    float best = kOut, second = size == 1 ? 0 : kOut;
    for (const float value : values.subspan(g * size, size)) {
      second = std::max(second, std::min(best, value));
      best = std::max(best, value);
    }
    groups.emplace_back(rule.sigmoid ? -(best + second) : -best, g);
  }
  std::ranges::sort(groups);
  for (size_t i = size_t(rule.n_groups_used); i < groups.size(); ++i)
    std::ranges::fill(values.subspan(groups[i].second * size, size), kOut);
}

}  // namespace

void choose_experts(CpuContext& context, View2<const float> scores, const ExpertRule& rule, const float* bias,
                    std::span<Route> routes) {
  RIDGE_CHECK(rule.n_used > 0 && rule.n_used <= scores.cols && ssize(routes) == scores.rows * rule.n_used,
              "{} of {} experts, {} routes of {} tokens", rule.n_used, scores.cols, routes.size(), scores.rows);
  const TracedOp traced(context, "route", {}, {4 * scores.rows * scores.cols, 8 * ssize(routes), 0});
  std::vector<float> weights(size_t(scores.cols)), values;
  for (int64_t t = 0; t < scores.rows; ++t) {
    const std::span<const float> row = scores.row(t);
    const std::span<Route> chosen = routes.subspan(size_t(t * rule.n_used), size_t(rule.n_used));
    const float top = *std::ranges::max_element(row);
    double total = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      weights[i] = rule.sigmoid ? 1 / (1 + std::exp(-row[i])) : std::exp(row[i] - top);
      total += weights[i];
    }
    // A softmax rises with the score, and rounding makes equals of different scores.
    const bool by_score = !rule.sigmoid && !bias && rule.n_groups == 1;
    if (by_score) values.assign(row.begin(), row.end());
    else values = weights;
    const float whole = rule.sigmoid ? 1 : float(total);  // a bias is beside probabilities
    for (size_t i = 0; bias && i < values.size(); ++i) values[i] += bias[i] * whole;
    if (rule.n_groups > 1) keep_best_groups(rule, values);

    size_t n = 0;  // chosen so far, the best first
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value_of = [&](const Route& route) { return values[size_t(route.expert)]; };
      if (n == chosen.size() && !(values[i] > value_of(chosen.back()))) continue;
      size_t at = n < chosen.size() ? n++ : n - 1;
      for (; at > 0 && values[i] > value_of(chosen[at - 1]); --at) chosen[at] = chosen[at - 1];
      chosen[at] = {int32_t(i), weights[i]};
    }
    if (rule.renormalised) {
      total = 0;
      for (const Route& route : chosen) total += route.weight;
    } else if (rule.sigmoid) {
      total = 1;
    }
    if (!(total > 0)) total = 1;  // sigmoids of very low scores: all weights are 0
    for (Route& route : chosen) route.weight = float(route.weight / total * rule.scale);
    std::ranges::sort(chosen, {}, &Route::expert);
  }
}

}  // namespace ridge
