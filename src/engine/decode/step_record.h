// What one step of texts did, and what its time went to.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace ridge {

/// What a step spends its time on: who takes part and the room in the cache; the model itself; sampling on the
/// host, masks and penalties with it (a device that samples by itself: its setup, sampling is in the model's part);
/// handing tokens on.
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
