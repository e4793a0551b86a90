#include "op/experts/route.h"

#include <algorithm>
#include <cmath>

#include "op/trace.h"

namespace ridge {

void choose_experts(CpuContext& context, View2<const float> scores, int n_used, bool renormalised,
                    std::span<Route> routes) {
  RIDGE_CHECK(n_used > 0 && n_used <= scores.cols && ssize(routes) == scores.rows * n_used,
              "{} of {} experts, {} routes of {} tokens", n_used, scores.cols, routes.size(), scores.rows);
  const TracedOp traced(context, "route", {}, {4 * scores.rows * scores.cols, 8 * ssize(routes), 0});
  for (int64_t t = 0; t < scores.rows; ++t) {
    const std::span<const float> row = scores.row(t);
    const std::span<Route> chosen = routes.subspan(size_t(t * n_used), size_t(n_used));
    const float top = *std::ranges::max_element(row);
    double total = 0;
    size_t n = 0;  // chosen so far, the likeliest first
    for (size_t i = 0; i < row.size(); ++i) {
      const float weight = std::exp(row[i] - top);
      total += weight;
      if (n == chosen.size() && !(weight > chosen.back().weight)) continue;
      size_t at = n < chosen.size() ? n++ : n - 1;
      for (; at > 0 && weight > chosen[at - 1].weight; --at) chosen[at] = chosen[at - 1];
      chosen[at] = {int32_t(i), weight};
    }
    if (renormalised) {
      total = 0;
      for (const Route& route : chosen) total += route.weight;
    }
    for (Route& route : chosen) route.weight = float(route.weight / total);
    std::ranges::sort(chosen, {}, &Route::expert);
  }
}

}  // namespace ridge
