// The host's loop over steps of a device that feed themselves: the host only queues steps ahead of the tokens it has
// seen, so that the device never waits for it. The one place where the host waits for such steps.
#pragma once

#include "engine/backend.h"

namespace ridge {

/// Steps that a device may be ahead of the tokens that were handed on: one hides the host's work on a token, another
/// one its hiccups.
inline constexpr int kStepsAhead = 3;

class RunAhead {
 public:
  /// Steps of `n_numbers` numbers each. At most `depth` (1 or more; no more than the ring has slots) are queued whose
  /// numbers were not handed on. Depth 1 keeps host and device in step; 2 hides the host's work on a token if that
  /// takes less than a step.
  RunAhead(DeviceSteps& steps, int n_numbers, int depth);

  /// Queues steps, numbered on from those of earlier calls, while may_launch() says so, and hands on the numbers of
  /// each in order, until none is left or on_numbers() returns false. Steps queued beyond that run to their end and are
  /// forgotten: nothing is queued or running when this returns or throws. Throws failure when the device ends without
  /// delivering.
  void run(const std::function<bool()>& may_launch, const std::function<bool(std::span<const int32_t>)>& on_numbers);
  /// Steps of all calls: queued, and handed on.
  int64_t n_launched() const { return n_launched_; }
  int64_t n_taken() const { return n_taken_; }
  /// Steps of this call that are queued whose numbers were not handed on.
  int n_queued() const { return int(n_launched_ - next_); }

 private:
  void wait_for(int64_t step, std::span<int32_t> numbers);

  DeviceSteps& steps_;
  const int n_numbers_, depth_;
  int64_t n_launched_ = 0, n_taken_ = 0;
  int64_t next_ = 0;  // to hand on
};

}  // namespace ridge
