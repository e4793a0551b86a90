// How the router of an expert layer chooses, for host and device.
#pragma once

namespace ridge {

/// How a router chooses. A token takes the n_used experts of largest softmax(scores), or sigmoid(score) + bias. With
/// groups, equal parts of the experts in order, only experts of the best n_groups_used compete: those with the largest
/// sum of their two largest values, or with a softmax the largest value. Of two equal ones the lower number wins.
struct ExpertRule {
  int n_used = 0;
  bool renormalised = false;  ///< the chosen weights are divided by their sum
  bool sigmoid = false;       ///< in place of the softmax over all experts
  int n_groups = 1;
  int n_groups_used = 1;
  float scale = 1;  ///< on the weights
};

}  // namespace ridge
