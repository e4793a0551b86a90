// Metrics since the start: counts, times and the newest steps.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/decode/step_record.h"
#include "op/trace.h"
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

/// Names of StepPart.
inline constexpr std::array<std::string_view, kNStepParts> kStepParts = {"planning", "model", "sampling", "events"};

/// Seconds that the CPU's ops took since the start.
struct OpTimes {
  int64_t passes = 0;
  double seconds = 0;                                     ///< of these passes, with what lies between ops
  std::map<int, std::map<std::string_view, double>> ops;  ///< by layer (-1: outside the layers) and op

  /// Takes the calls of one pass out of the trace.
  void take(OpTrace& trace, double pass_seconds);
};

/// Kept by the scheduler's thread; copies are free.
struct Totals {
  int64_t requests = 0, finished = 0, cancelled = 0, failed = 0;
  int64_t prompt_tokens = 0;  ///< computed
  int64_t cached_tokens = 0;  ///< of prompts, found in the cache
  int64_t generated_tokens = 0;
  int64_t proposed_tokens = 0, accepted_tokens = 0;  ///< of speculation
  int64_t steps = 0, decode_rows = 0, parked = 0;
  int64_t steps_ahead = 0;  ///< that a device ran before the host had the tokens of the step in front
  double step_seconds = 0;
  std::array<double, kStepParts.size()> part_seconds{};
  Histogram queue, first_token, between_tokens, step, request;
  std::optional<OpTimes> ops;                      ///< where the server times them
  std::deque<StepRecord> recent;                   ///< the newest last
  std::function<void(const Totals&)> on_end = {};  ///< called before a client hears that its text has ended

  void count_end(FinishReason reason, const Usage& usage, double seconds);
  void count_step(const StepRecord& record);
};

}  // namespace ridge::serve
