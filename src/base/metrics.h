// Error metrics, one definition each. Double accumulation; shapes must match.
#pragma once

#include <cstddef>
#include <span>

namespace ridge {

/// How far `actual` is from `expected`.
struct Comparison {
  double nmse = 0;             ///< sum (a-e)^2 / sum e^2 (sum (a-e)^2 when e is all zero)
  double cosine = 1;           ///< <a, e> / (|a| |e|); 1 when both are zero
  double norm_ratio = 1;       ///< |a| / |e|
  double max_abs = 0;          ///< worst |a - e|
  size_t worst_index = 0;      ///< where max_abs is
  bool same_nonfinite = true;  ///< NaN and infinity stand at the same places
};
Comparison compare(std::span<const float> actual, std::span<const float> expected);

/// ln sum exp(x), stable.
double log_sum_exp(std::span<const float> logits);

/// KL(base || candidate) of two softmax distributions given as logits, in nats.
double kl_divergence(std::span<const float> base_logits, std::span<const float> candidate_logits);
/// KL(base || candidate) with both log_sum_exp() already known: one base row serves many candidates.
double kl_divergence(std::span<const float> base_logits, double base_lse, std::span<const float> candidate_logits,
                     double candidate_lse);

}  // namespace ridge
