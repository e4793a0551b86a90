// Probabilities that the rule of op/sample/rule.h samples by, for rejection sampling.
#pragma once

#include <utility>
#include <vector>

#include "base/rng.h"
#include "ridge/engine.h"

namespace ridge {

/// Tokens, each once, and probabilities above 0 that add up to 1.
using Distribution = std::vector<std::pair<int32_t, double>>;

/// Distribution at a temperature above 0. `recent` holds the tokens that the penalty applies to.
Distribution distribution_of(const SamplerOptions& options, std::span<const float> logits,
                             std::span<const int32_t> recent);
int32_t sample_from(const Distribution& distribution, Rng& rng);
double probability_of(const Distribution& distribution, int32_t token);
/// Distribution to sample from where a token of q was rejected: max(p - q, 0), normalized; p where nothing is left.
Distribution residual(const Distribution& p, const Distribution& q);

}  // namespace ridge
