#include "op/score/score.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/metrics.h"

namespace ridge {
namespace {

/// Fields that need no base.
RowScore score_alone(std::span<const float> candidate, const RowFacts& facts, int32_t target) {
  RowScore score{};
  score.finite = facts.finite ? 1 : 0;
  if (facts.finite) score.nll = nll(candidate, facts, target);
  return score;
}

}  // namespace

RowFacts row_facts(std::span<const float> logits) {
  RowFacts facts;
  facts.finite = std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
  if (!facts.finite) return facts;
  facts.log_sum = log_sum_exp(logits);
  facts.top = int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
  return facts;
}

double nll(std::span<const float> logits, const RowFacts& facts, int32_t target) {
  RIDGE_CHECK(target >= 0 && size_t(target) < logits.size(), "token {} of {}", target, logits.size());
  return facts.log_sum - double(logits[size_t(target)]);
}

RowScore score_row(std::span<const float> base, std::span<const float> candidate, int32_t target) {
  const RowFacts facts = row_facts(candidate);
  RowScore score = score_alone(candidate, facts, target);
  if (base.empty()) return score;
  const RowFacts base_facts = row_facts(base);
  score.finite |= base_facts.finite ? 2 : 0;
  if (score.finite != 3) return score;
  score.nll_base = nll(base, base_facts, target);
  score.kld = kl_divergence(base, base_facts.log_sum, candidate, facts.log_sum);
  score.delta_p = std::exp(-score.nll) - std::exp(-score.nll_base);
  score.same_top = base_facts.top == facts.top;
  return score;
}

RowScore score_row_of_log_probs(std::span<const float> base_log_probs, std::span<const float> candidate,
                                int32_t target) {
  constexpr float kLeast = -16;
  RIDGE_CHECK(base_log_probs.size() == candidate.size(), "sizes differ: {} and {}", base_log_probs.size(),
              candidate.size());
  const RowFacts facts = row_facts(candidate);
  RowScore score = score_alone(candidate, facts, target);
  if (!facts.finite) return score;
  score.finite |= 2;
  score.nll_base = -double(base_log_probs[size_t(target)]);
  for (size_t i = 0; i < candidate.size(); ++i)
    if (const float log_p = base_log_probs[i]; log_p > kLeast)
      score.kld += std::exp(double(log_p)) * (log_p - (candidate[i] - facts.log_sum));
  score.delta_p = std::exp(-score.nll) - std::exp(-score.nll_base);
  score.same_top = std::max_element(base_log_probs.begin(), base_log_probs.end()) - base_log_probs.begin() == facts.top;
  return score;
}

}  // namespace ridge
