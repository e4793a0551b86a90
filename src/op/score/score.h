// Scores of rows of logits for quality runs, on the host. Definitions are llama-perplexity's.
#pragma once

#include <span>

#include "op/score/row_score.h"

namespace ridge {

/// One row of logits, looked at once.
struct RowFacts {
  double log_sum = 0;  ///< ln sum exp
  int32_t top = 0;     ///< first index of the largest logit
  bool finite = true;  ///< no NaN, no infinity
};
RowFacts row_facts(std::span<const float> logits);

/// -ln p(target) in nats.
double nll(std::span<const float> logits, const RowFacts& facts, int32_t target);

/// Scores a candidate's row against the base's; with an empty base the candidate alone.
RowScore score_row(std::span<const float> base, std::span<const float> candidate, int32_t target);

/// Scores a candidate's row against a base row that came as log-probabilities from a file (docs/formats/kl-base.md). As
/// in llama-perplexity the base row is not normalised again, and what lies at -16 nats or below adds nothing to the
/// divergence.
RowScore score_row_of_log_probs(std::span<const float> base_log_probs, std::span<const float> candidate,
                                int32_t target);

}  // namespace ridge
