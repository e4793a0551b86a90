// What the rule of op/sample/rule.h samples from, as probabilities: for rejection sampling.
#pragma once

#include <utility>
#include <vector>

#include "base/rng.h"
#include "ridge/engine.h"

namespace ridge {

/// Tokens, each once, and probabilities above 0 that add up to 1.
using Distribution = std::vector<std::pair<int32_t, double>>;

/// Of a temperature above 0. `recent` is what the penalty knows.
Distribution distribution_of(const SamplerOptions& options, std::span<const float> logits,
                             std::span<const int32_t> recent);
int32_t sample_from(const Distribution& distribution, Rng& rng);
double probability_of(const Distribution& distribution, int32_t token);
/// What is sampled where a token of q was rejected: max(p - q, 0), scaled; p where nothing is left.
Distribution residual(const Distribution& p, const Distribution& q);

}  // namespace ridge
