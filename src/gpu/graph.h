// CUDA graphs and events, for code that names no CUDA header. Defined in builds with RIDGE_CUDA only; errors as in
// gpu/device.h.
#pragma once

#include <functional>
#include <memory>

#include "gpu/device.h"
#include "gpu/runtime_types.h"

namespace ridge::gpu {

/// Frees what it is given.
struct Destroy {
  void operator()(GraphType* exec) const;
  void operator()(EventType* event) const;
};

/// Queued work, recorded once and replayed with one call: a decode step of some hundred launches costs the host about
/// as much as one.
///
/// A replay runs what was recorded, with the pointers and numbers it was recorded with: what changes from step to step
/// (position, token, seed) must be in device memory. Buffers it names must outlive it and stay where they are.
class Graph {
 public:
  Graph() = default;
  /// Records everything that `work` queues on `stream`, running none of it, and readies it for launch. `work` may queue
  /// launches, copies and clears on that stream only; it must not allocate, free or wait (CUDA refuses those, which
  /// throws failure). An exception of `work` ends the recording and goes on to the caller.
  Graph(StreamHandle stream, const std::function<void()>& work);

  explicit operator bool() const { return exec_ != nullptr; }
  /// Queues one replay. Replays on one stream run in order. Not for an empty graph.
  void launch(StreamHandle stream) const;

 private:
  std::unique_ptr<GraphType, Destroy> exec_;
};

/// A point in a stream's work, to wait for, to ask about and to measure from.
class Event {
 public:
  /// An event that no time is wanted of is cheaper to record.
  explicit Event(bool timed = true);

  /// Marks the end of the work queued on `stream` so far; forgets an earlier mark.
  void record(StreamHandle stream) const;
  /// Whether everything before the mark has run; true before the first record().
  bool done() const;
  /// Waits until it has.
  void synchronize() const;
  /// Makes work that is queued on `stream` from here on wait for the mark; the host does not wait.
  void hold(StreamHandle stream) const;
  /// Device time from the mark of `start` to this one; both timed, recorded and done. Resolution about 0.5 us.
  double microseconds_since(const Event& start) const;

 private:
  std::unique_ptr<EventType, Destroy> event_;
};

}  // namespace ridge::gpu
