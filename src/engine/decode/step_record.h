// Record of one step of texts: its tokens, and the time of its parts.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace ridge {

/// Parts of a step's time. Planning: who takes part, and the room in the cache. Model: the forward pass. Sampling: on
/// the host, with masks and penalties; on a device that samples by itself only the setup, as its sampling counts as
/// model. Events: handing tokens on.
enum class StepPart : uint8_t { planning, model, sampling, events };
inline constexpr size_t kNStepParts = 4;

struct StepRecord {
  double seconds = 0;
  int n_decode = 0, n_prompt_tokens = 0;
  int n_proposed = 0, n_accepted = 0;       ///< of speculation
  bool ahead = false;                       ///< a device ran it before the host had the tokens of the step in front
  std::array<double, kNStepParts> parts{};  ///< seconds; planning starts before the step: requests start in it
};

/// Deals the time of steps out among their parts.
class PartClock {
 public:
  /// The time since the last call, or since this was made, was spent on `part`; returns it.
  double charge(StepRecord& record, StepPart part) {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - mark_).count();
    record.parts[size_t(part)] += seconds;
    mark_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point mark_ = std::chrono::steady_clock::now();
};

}  // namespace ridge
