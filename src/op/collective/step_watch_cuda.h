// Whoever waits for a GPU of another process waits without a limit: a kernel of NCCL does, a call of NCCL on the host,
// and a launch behind too many others. A thread looks whether what other ranks take part in comes to its end.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gpu/graph.h"

namespace ridge {

struct StepWatchOptions {
  int device = 0;
  double timeout_s = 60;  ///< longest time between the end of a step and that of the next one
  /// From the watching thread: what is known to have failed; empty when nothing is.
  std::function<std::string()> trouble;
  /// Message for a forward pass or a part, `what`, that has not ended within so many seconds.
  std::function<std::string(std::string_view what, double seconds)> late;
  /// From the watching thread: ends all waits, once.
  std::function<void()> end;
};

/// Calls of one thread; check() is any thread's. When something fails and check() has not said so soon, because the
/// thread that should call it waits elsewhere, the process ends with that message and exit code 1.
class StepWatch {
 public:
  explicit StepWatch(StepWatchOptions options);
  ~StepWatch();
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  /// A part of the host's work that other ranks take part in: while this lives the time runs.
  class Part {
   public:
    Part(StepWatch& watch, std::string what, double seconds);
    ~Part();
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   private:
    StepWatch& watch_;
  };
  /// Marks the work queued on `stream` so far as a forward pass, which must end.
  void mark(gpu::StreamHandle stream);
  /// Throws Error(failure) once something has failed.
  void check();

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  /// Returns what has failed; empty when nothing has.
  std::string look(std::unique_lock<std::mutex>& lock);
  void end_all(std::unique_lock<std::mutex>& lock);

  const StepWatchOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<gpu::Event>> marks_;   // of steps that have not ended, in order
  std::vector<std::unique_ptr<gpu::Event>> spare_;  // for later ones
  std::string what_;                                // of the part that is open; empty: none
  double seconds_ = 0;                              // for it
  Clock::time_point progress_ = Clock::now();       // when something ended or began last
  std::string failure_;
  std::atomic<bool> failed_ = false;
  bool seen_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace ridge
