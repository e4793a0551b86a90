// The host's loop over decode steps that feed themselves: the device draws a token and goes on with it, the host only
// queues steps ahead of the tokens it has seen, so that the device never waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace ridge {

/// Steps that can be queued before the tokens of earlier ones are known. Each appends the tokens of the one before to
/// its sequences' caches and draws the next ones. Calls throw what went wrong on the device.
class DeviceSteps {
 public:
  virtual ~DeviceSteps() = default;
  /// Queues step number `step`, counted from 0.
  virtual void launch(int64_t step) = 0;
  /// The tokens of a launched step, one a sequence, if they have come; never waits.
  virtual bool read(int64_t step, std::span<int32_t> tokens) = 0;
  /// Whether every launched step has ended.
  virtual bool idle() = 0;
  /// Waits until it has.
  virtual void finish() = 0;
};

/// Steps that a device may be ahead of the tokens that were handed on: one hides the host's work on a token, another one
/// its hiccups.
inline constexpr int kStepsAhead = 3;

struct RunAheadResult {
  int64_t n_taken = 0;     ///< steps whose tokens were handed on
  int64_t n_launched = 0;  ///< steps that ran: the caches hold n_launched - n_taken surplus ones, for the caller to cut
};

class RunAhead {
 public:
  /// At most `depth` (1 or more; no more than the ring has slots) steps are queued whose tokens were not handed on.
  /// Depth 1 keeps host and device in step; 2 hides the host's work on a token if that takes less than a step.
  RunAhead(DeviceSteps& steps, int n_seq, int depth);

  /// Runs up to n_steps steps, numbered on from those of earlier calls, and hands on the tokens [n_seq] of each in
  /// order, until on_tokens returns false. Steps queued beyond that run to their end and are forgotten: nothing is
  /// queued or running when this returns or throws. Throws failure when the device ends without delivering tokens.
  RunAheadResult run(int64_t n_steps, const std::function<bool(std::span<const int32_t> tokens)>& on_tokens);

 private:
  void wait_for(int64_t step, std::span<int32_t> tokens);

  DeviceSteps& steps_;
  const int n_seq_, depth_;
  int64_t n_before_ = 0;  // steps launched by earlier calls
};

}  // namespace ridge
