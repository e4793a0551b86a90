// A proposer whose draft tokens cost more than steps and never hold: texts pause at once.
#pragma once

#include <chrono>
#include <thread>

#include "engine/decode/text.h"

namespace ridge {

class CostlyProposer final : public Proposer {
 public:
  /// Counts in `n_seen` the steps that it observes. `ms`: of a draft token, many times a step.
  CostlyProposer(int ms, int& n_seen) : time_(ms), n_seen_(n_seen) {}
  std::vector<int32_t> propose(std::span<const int32_t> text, int n) override {
    std::this_thread::sleep_for(time_);
    return std::vector<int32_t>(size_t(n), text.back());
  }
  bool wants_hidden() const override { return true; }
  void observe(std::span<const int32_t>, int, View2<const float>) override { ++n_seen_; }

 private:
  std::chrono::milliseconds time_;
  int& n_seen_;
};

}  // namespace ridge
