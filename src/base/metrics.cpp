#include "base/metrics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace ridge {

Comparison compare(std::span<const float> actual, std::span<const float> expected) {
  RIDGE_CHECK(actual.size() == expected.size(), "sizes differ: {} and {}", actual.size(), expected.size());
  Comparison result;
  double error2 = 0, actual2 = 0, expected2 = 0, dot = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = actual[i], e = expected[i];
    if (!std::isfinite(a) || !std::isfinite(e)) {
      const bool same = (std::isnan(a) && std::isnan(e)) || a == e;
      if (!same && result.same_nonfinite) result.worst_index = i;
      result.same_nonfinite = result.same_nonfinite && same;
      continue;
    }
    const double difference = std::abs(a - e);
    if (difference > result.max_abs) {
      result.max_abs = difference;
      if (result.same_nonfinite) result.worst_index = i;
    }
    error2 += difference * difference;
    actual2 += a * a;
    expected2 += e * e;
    dot += a * e;
  }
  result.nmse = expected2 > 0 ? error2 / expected2 : error2;
  if (actual2 > 0 && expected2 > 0) result.cosine = dot / std::sqrt(actual2 * expected2);
  else result.cosine = actual2 == expected2 ? 1 : 0;
  result.norm_ratio = expected2 > 0 ? std::sqrt(actual2 / expected2) : (actual2 > 0 ? INFINITY : 1);
  return result;
}

double log_sum_exp(std::span<const float> logits) {
  RIDGE_CHECK(!logits.empty(), "no logits");
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double(logit) - top);
  return top + std::log(sum);
}

double kl_divergence(std::span<const float> base_logits, std::span<const float> candidate_logits) {
  return kl_divergence(base_logits, log_sum_exp(base_logits), candidate_logits, log_sum_exp(candidate_logits));
}

double kl_divergence(std::span<const float> base_logits, double base_lse, std::span<const float> candidate_logits,
                     double candidate_lse) {
  RIDGE_CHECK(base_logits.size() == candidate_logits.size(), "sizes differ: {} and {}", base_logits.size(),
              candidate_logits.size());
  double divergence = 0;
  for (size_t i = 0; i < base_logits.size(); ++i) {
    const double log_p = base_logits[i] - base_lse, p = std::exp(log_p);
    if (p != 0) divergence += p * (log_p - (candidate_logits[i] - candidate_lse));  // p log p is 0 at 0, not NaN
  }
  return divergence;
}

}  // namespace ridge
