// Times work of a GPU as it runs inside a decode step: calls in a CUDA graph, replayed back to back, cold data.
//
// A work's calls take turns over its sets of buffers, so that with sets larger than the last-level cache together each
// call finds its data in memory. Several works are timed in one run, their replays alternating (A B A B), so that
// clocks that move meet all alike. Between replays stand device events; the host queues ahead, so launches cost nothing
// unless the host is slower than a replay (min_replay_seconds).
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "gpu/device.h"

namespace ridge::lab {

struct DeviceWork {
  int n_sets = 1;
  /// Queues one call on buffers `set` < n_sets. Called while the stream is captured: it may launch and copy, and must
  /// not allocate, wait, or depend on what the host does between calls.
  std::function<void(gpu::StreamHandle stream, int set)> queue;
};

struct TimerOptions {
  int replays = 60;                  ///< of each work
  double min_replay_seconds = 2e-3;  ///< a graph holds enough calls to take this long ...
  int max_calls = 2048;              ///< ... but not more than this, unless there are more sets
  double max_seconds = 10;           ///< of all works together; at least kFewestReplays are made
  std::function<bool()> stop;        ///< asked before every round of replays
};
inline constexpr int kFewestReplays = 5;

struct CallTimes {
  int calls = 0;                ///< in a replay, a multiple of n_sets
  std::vector<double> seconds;  ///< of one call, the mean of each replay
};

/// One entry a work. Times may be fewer than asked, none even, when `stop` said so. Throws Error: no_device in a build
/// without CUDA, failure when the device reports an error.
std::vector<CallTimes> time_on_device(const gpu::Stream& stream, std::span<const DeviceWork> works,
                                      const TimerOptions& options);

/// Host seconds from handing the device a graph of one call until it has run, each of `repeats` times.
std::vector<double> time_round_trips(const gpu::Stream& stream, const DeviceWork& work, int repeats);

}  // namespace ridge::lab
