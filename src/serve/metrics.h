// What happened since the start: counts, times and the newest steps.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "serve/request.h"

namespace ridge::serve {

/// How many times lie below each bound.
class Histogram {
 public:
  static constexpr std::array<double, 18> kBounds = {.0005, .001, .002, .005, .01, .02, .05, .1,  .2,
                                                     .5,    1,    2,    5,    10,  20,  50,  100, 200};  ///< seconds
  void observe(double seconds);
  int64_t count() const { return count_; }
  /// The rows of a Prometheus histogram.
  std::string text(std::string_view name, std::string_view help) const;

 private:
  std::array<int64_t, kBounds.size()> below_{};
  int64_t count_ = 0;
  double sum_ = 0;
};

/// What a step spends its time on: who takes part and the room in the cache; the model itself; the draw of tokens on the
/// host, masks and penalties with it (a device that draws by itself: its setup, the draw is the model's); handing tokens on.
enum class StepPart : uint8_t { planning, model, sampling, events };
inline constexpr std::array<std::string_view, 4> kStepParts = {"planning", "model", "sampling", "events"};

/// A step of one pool.
struct StepRecord {
  double seconds = 0;
  int n_decode = 0, n_prompt_tokens = 0;
  int n_proposed = 0, n_accepted = 0;             ///< of speculation
  std::array<double, kStepParts.size()> parts{};  ///< seconds; planning starts before the step: requests start in it
};

/// Deals the time of steps out among their parts.
class PartClock {
 public:
  /// The time since the last call, or since this was made, was spent on `part`.
  void charge(StepRecord& record, StepPart part) {
    const auto now = std::chrono::steady_clock::now();
    record.parts[size_t(part)] += std::chrono::duration<double>(now - mark_).count();
    mark_ = now;
  }

 private:
  std::chrono::steady_clock::time_point mark_ = std::chrono::steady_clock::now();
};

/// Kept by the scheduler's thread; copies are free.
struct Totals {
  int64_t requests = 0, finished = 0, cancelled = 0, failed = 0;
  int64_t prompt_tokens = 0;  ///< computed
  int64_t cached_tokens = 0;  ///< of prompts, found in the cache
  int64_t generated_tokens = 0;
  int64_t proposed_tokens = 0, accepted_tokens = 0;  ///< of speculation
  int64_t steps = 0, decode_rows = 0, parked = 0;
  double step_seconds = 0;
  std::array<double, kStepParts.size()> part_seconds{};
  Histogram queue, first_token, between_tokens, step, request;
  std::deque<StepRecord> recent;                   ///< the newest last
  std::function<void(const Totals&)> on_end = {};  ///< called before a client hears that its text has ended

  void count_end(FinishReason reason, const Usage& usage, double seconds);
  void count_step(const StepRecord& record);
};

}  // namespace ridge::serve
