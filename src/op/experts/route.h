// The router of an expert layer: which experts each token takes, with what weights.
#pragma once

#include <span>

#include "base/view.h"
#include "op/cpu.h"
#include "op/experts/rule.h"

namespace ridge {

/// An expert of one token, and the factor on what the expert gives.
struct Route {
  int32_t expert = 0;
  float weight = 0;
};

/// The experts of every token, in order of their number. Weights are softmax(scores) or sigmoid(score), without the
/// bias. scores [n_tokens, n_experts], bias [n_experts] or null, routes [n_tokens, rule.n_used].
void choose_experts(CpuContext& context, View2<const float> scores, const ExpertRule& rule, const float* bias,
                    std::span<Route> routes);

}  // namespace ridge
