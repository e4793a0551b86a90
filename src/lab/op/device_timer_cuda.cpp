#include "lab/op/device_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "gpu/graph.h"

namespace ridge::lab {
namespace {

/// `calls` calls of a work over its sets in turn.
gpu::Graph calls_of(const gpu::Stream& stream, const DeviceWork& work, int calls) {
  return gpu::Graph(stream, [&] {
    for (int i = 0; i < calls; ++i) work.queue(stream, i % work.n_sets);
  });
}

/// Seconds of one replay, begun while the device is idle.
double seconds_of(const gpu::Stream& stream, const gpu::Graph& graph) {
  const gpu::Event begin, end;
  begin.record(stream);
  graph.launch(stream);
  end.record(stream);
  stream.synchronize();
  return end.microseconds_since(begin) * 1e-6;
}

struct Replay {
  gpu::Graph graph;
  int calls;
  double seconds;  ///< about
};

/// A graph of whole turns over the sets that takes long enough.
Replay make_replay(const gpu::Stream& stream, const DeviceWork& work, const TimerOptions& options) {
  work.queue(stream, 0);  // outside of a capture: kernels are loaded at their first launch
  stream.synchronize();
  gpu::Graph graph = calls_of(stream, work, work.n_sets);
  seconds_of(stream, graph);  // uploads it
  const double turn = seconds_of(stream, graph);
  const int most = std::max(1, options.max_calls / work.n_sets);
  const int turns = turn > 0 ? int(std::clamp(std::ceil(options.min_replay_seconds / turn), 1.0, double(most))) : most;
  if (turns > 1) {
    graph = calls_of(stream, work, turns * work.n_sets);
    seconds_of(stream, graph);
  }
  return {std::move(graph), turns * work.n_sets, turns * turn};
}

}  // namespace

std::vector<CallTimes> time_on_device(const gpu::Stream& stream, std::span<const DeviceWork> works,
                                      const TimerOptions& options) {
  std::vector<Replay> replays;
  double round_seconds = 0;
  for (const DeviceWork& work : works) {
    replays.push_back(make_replay(stream, work, options));
    round_seconds += replays.back().seconds;
  }
  int rounds = std::max(1, options.replays);
  if (round_seconds * rounds > options.max_seconds)
    rounds = std::min(rounds, std::max(kFewestReplays, int(options.max_seconds / round_seconds)));

  std::vector<gpu::Event> events;  // before every replay, and behind the last one
  events.reserve(size_t(rounds) * replays.size() + 1);
  events.emplace_back();
  if (!replays.empty()) replays.back().graph.launch(stream);  // the device is at work when the first event comes
  events.back().record(stream);
  for (int round = 0; round < rounds && !(options.stop && options.stop()); ++round)
    for (const Replay& replay : replays) {
      replay.graph.launch(stream);
      events.emplace_back();
      events.back().record(stream);
    }
  stream.synchronize();

  std::vector<CallTimes> times(works.size());
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    CallTimes& t = times[i % works.size()];
    t.calls = replays[i % works.size()].calls;
    t.seconds.push_back(events[i + 1].microseconds_since(events[i]) * 1e-6 / t.calls);
  }
  return times;
}

std::vector<double> time_round_trips(const gpu::Stream& stream, const DeviceWork& work, int repeats) {
  using Clock = std::chrono::steady_clock;
  work.queue(stream, 0);
  stream.synchronize();
  const gpu::Graph graph = calls_of(stream, work, 1);
  seconds_of(stream, graph);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    graph.launch(stream);
    stream.synchronize();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return seconds;
}

}  // namespace ridge::lab
