#include "lab/op/cpu_timer.h"

#include <algorithm>
#include <chrono>

namespace ridge::lab {
namespace {

using Clock = std::chrono::steady_clock;

/// A work, and the set that its next call is on.
struct Turn {
  const CpuWork* work;
  int calls = 1;  ///< of a sample
  int next_set = 0;

  /// Seconds of `n` calls.
  double sample(int n) {
    if (work->prepare) work->prepare(next_set, n);
    const auto start = Clock::now();
    for (int i = 0; i < n; ++i) {
      work->call(next_set);
      if (++next_set == work->n_sets) next_set = 0;
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  /// Chooses `calls`; returns about how long a sample takes. These calls warm the code, not the data.
  double choose_calls(const TimerOptions& options) {
    const int unit = work->calls_multiple;
    const int most = std::max(1, std::min(options.max_calls, work->most_calls) / unit) * unit;
    calls = unit;
    double seconds = sample(unit);
    for (seconds = sample(calls); seconds < options.min_replay_seconds && calls < most; seconds = sample(calls))
      calls = std::min(most, 2 * calls);
    return seconds;
  }
};

}  // namespace

std::vector<CallTimes> time_on_cpu(std::span<const CpuWork> works, const TimerOptions& options) {
  std::vector<Turn> turns;
  double round_seconds = 0;
  for (const CpuWork& work : works) {
    turns.push_back({&work});
    round_seconds += turns.back().choose_calls(options);
    turns.back().next_set = 0;
  }
  int rounds = std::max(1, options.replays);
  if (round_seconds * rounds > options.max_seconds)
    rounds = std::min(rounds, std::max(kFewestReplays, int(options.max_seconds / round_seconds)));
  std::vector<CallTimes> times(works.size());
  for (int round = 0; round < rounds && !(options.stop && options.stop()); ++round)
    for (size_t i = 0; i < turns.size(); ++i) {
      times[i].calls = turns[i].calls;
      times[i].seconds.push_back(turns[i].sample(turns[i].calls) / turns[i].calls);
    }
  return times;
}

}  // namespace ridge::lab
