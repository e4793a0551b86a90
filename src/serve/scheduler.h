// Who runs when: requests queue up, start when there is room, and share the steps of their pool. One thread owns the
// engine and all pools; everybody else hands it requests and questions.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "serve/lane.h"

namespace ridge::serve {

struct SchedulerOptions {
  LaneOptions lane;   ///< of every pool; `kv` is that of requests that name none
  int max_queue = 0;  ///< requests that wait
  int max_lanes = 1;  ///< pools, one per set of cache formats; each gets its share of lane.kv_bytes
};

/// What happened since the start.
struct Totals {
  int64_t requests = 0, finished = 0, cancelled = 0, failed = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  int64_t steps = 0, decode_rows = 0;
  double prompt_seconds = 0, decode_seconds = 0, step_seconds = 0;
};

class Scheduler {
 public:
  /// Opens the pool of the default formats. `engine` must outlive it. Throws Error.
  Scheduler(Engine& engine, const SchedulerOptions& options);
  ~Scheduler();

  /// Queues a request, whose prompt has fewer tokens than the context. Refuses: usage for formats that cannot work here,
  /// no_memory for a full queue or a pool too many, failure after the engine failed or while it stops.
  Result<uint64_t> submit(GenerationRequest request, std::shared_ptr<Listener> listener);
  /// The request ends within a step.
  void cancel(uint64_t id);
  /// Runs `look` between two steps, on the scheduler's thread, and waits for it. False once it has stopped.
  bool inspect(const std::function<void(Scheduler&)>& look);
  /// Takes no more requests, and returns when all have ended; those that have not by the deadline are cancelled.
  void stop(double patience_seconds);
  /// Why the engine failed; empty while it has not.
  std::string failure() const;

  Engine& engine() { return engine_; }
  const SchedulerOptions& options() const { return options_; }

  // For inspect():
  const std::map<std::string, std::unique_ptr<Lane>>& lanes() const { return lanes_; }
  size_t n_waiting() const { return waiting_.size(); }
  const Totals& totals() const { return totals_; }
  const std::deque<StepRecord>& recent_steps() const { return recent_; }  ///< the newest last

 private:
  void run();
  bool take_commands();
  Lane& lane(const std::string& kv);
  void admit();
  void step();
  void count_end(FinishReason reason, const Usage& usage);

  Engine& engine_;
  const SchedulerOptions options_;
  const std::string default_kv_;
  std::map<std::string, std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<Job>> waiting_;  // in the order they came
  Totals totals_;
  std::deque<StepRecord> recent_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, looked_;
  std::deque<std::unique_ptr<Job>> incoming_;
  std::vector<uint64_t> cancelled_;
  std::deque<std::function<void()>> looks_;
  std::vector<std::string> known_kv_;  // formats with a pool, or about to have one
  size_t n_queued_ = 0;                // incoming and waiting
  uint64_t last_id_ = 0;
  bool stopping_ = false, cancel_all_ = false, stopped_ = false;
  std::string failure_;
  std::atomic<bool> news_ = false;  // something came that a run-ahead must look at
  std::thread thread_;
};

}  // namespace ridge::serve
