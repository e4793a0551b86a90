// Times work of the CPU: samples of many calls each, so that the clock's resolution does not matter, over sets of
// buffers in turn, so that each call finds its data in memory. Several works are timed in one run, their samples
// alternating (A B A B), so that clocks that move and other tenants meet all alike.
#pragma once

#include "lab/op/device_timer.h"

namespace ridge::lab {

struct CpuWork {
  int n_sets = 1;
  std::function<void(int set)> call;
  /// Before every sample, untimed: of `calls` calls, the first on `first_set`. May be empty.
  std::function<void(int first_set, int calls)> prepare;
  int most_calls = 1 << 30;  ///< of a sample
  int calls_multiple = 1;    ///< of which a sample's calls are a multiple, whatever TimerOptions::max_calls says
};

/// One entry a work: TimerOptions::replays samples of at least min_replay_seconds each, of any number of calls; the
/// next sample goes on with the next set. Times may be fewer than asked, none even, when `stop` said so.
std::vector<CallTimes> time_on_cpu(std::span<const CpuWork> works, const TimerOptions& options);

}  // namespace ridge::lab
