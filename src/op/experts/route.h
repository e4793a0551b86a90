// The router of an expert layer: which experts each token takes, with what weights.
#pragma once

#include <span>

#include "base/view.h"
#include "op/cpu.h"

namespace ridge {

/// An expert of one token, and the factor on what the expert gives.
struct Route {
  int32_t expert = 0;
  float weight = 0;
};

/// How a router chooses. A token takes the n_used experts of largest softmax(scores), or sigmoid(score) + bias. With
/// groups, equal parts of the experts in order, only experts of the best n_groups_used compete: those with the largest sum
/// of their two largest values, or with a softmax the largest value. Of two equal ones the lower number wins.
struct ExpertRule {
  int n_used = 0;
  bool renormalised = false;  ///< the chosen weights are divided by their sum
  bool sigmoid = false;       ///< in place of the softmax over all experts
  int n_groups = 1;
  int n_groups_used = 1;
  float scale = 1;  ///< on the weights
};

/// The experts of every token, in order of their number. Weights are softmax(scores) or sigmoid(score), without the bias.
/// scores [n_tokens, n_experts], bias [n_experts] or null, routes [n_tokens, rule.n_used].
void choose_experts(CpuContext& context, View2<const float> scores, const ExpertRule& rule, const float* bias,
                    std::span<Route> routes);

}  // namespace ridge
