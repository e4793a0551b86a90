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

/// The n_used likeliest experts of every token, in order of their number; of two equally likely ones the lower number.
/// Weights are softmax(scores), over all experts or, where `renormalised`, over the chosen ones.
/// scores [n_tokens, n_experts], routes [n_tokens, n_used].
void choose_experts(CpuContext& context, View2<const float> scores, int n_used, bool renormalised,
                    std::span<Route> routes);

}  // namespace ridge
