// Who runs when: requests queue up, start when there is room, and share the steps of their pool. One thread owns the
// engine and all pools; everybody else hands it requests and questions.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "serve/pool_runner.h"

namespace ridge::serve {

struct SchedulerOptions {
  PoolOptions pool;        ///< of every pool; `kv` is that of requests that name none
  int max_queue = 0;       ///< requests that wait
  bool trace_ops = false;  ///< times the ops of every pass, on the CPU only
  int max_pools = 1;  ///< pools, one per set of cache formats; each gets its share of pool.kv_bytes and pool.swap_bytes
  /// Called on the scheduler's thread with a pool that was just opened, and with every pool when all requests have
  /// ended.
  std::function<void(PoolRunner&)> on_open = [](PoolRunner&) {}, on_close = [](PoolRunner&) {};
};

/// Numbers that /metrics shows.
struct Board {
  Totals totals;
  size_t n_running = 0, n_parked = 0, n_waiting = 0;  ///< sequences in the cache, in host memory, requests in the queue
  std::vector<std::pair<std::string, PoolReport>> pools;  ///< by their cache formats
};

class Scheduler {
 public:
  /// Opens the pool of the default formats. `engine` must outlive it. Throws Error.
  Scheduler(Engine& engine, const SchedulerOptions& options);
  ~Scheduler();

  struct Submission {
    GenerationRequest request;
    std::shared_ptr<Listener> listener;
  };
  /// Queues requests, all or none; every prompt has fewer tokens than the context. `on_queued` runs before any of them
  /// starts. The text of a model without a tokenizer is its token ids as numbers, a space behind each. Refuses: usage
  /// for formats that cannot work here and for a pool too many, no_memory for a full queue, failure after the engine
  /// failed or while it stops.
  Result<std::vector<uint64_t>> submit(
      std::vector<Submission> submissions, const std::function<void()>& on_queued = [] {});
  Result<uint64_t> submit(GenerationRequest request, std::shared_ptr<Listener> listener);
  /// Formats of requests that name none, as kv_text() writes them.
  std::string default_kv() const;
  /// Refuses what submit() refuses.
  Status set_default_kv(const std::string& kv);
  /// The request ends within a step.
  void cancel(uint64_t id);
  /// Runs `look` between two steps, on the scheduler's thread, and waits for it. What it throws is thrown here. False
  /// once the scheduler has stopped.
  bool inspect(const std::function<void(Scheduler&)>& look);
  /// For any thread, at any time, without waiting for a step. Ends of texts count at once, the rest within
  /// kBoardSeconds.
  Board board() const;
  static constexpr double kBoardSeconds = 0.05;
  /// Takes no more requests, and returns when all have ended; those that have not by the deadline are cancelled.
  void stop(double patience_seconds);
  /// Why the engine failed; empty while it has not.
  std::string failure() const;

  Engine& engine() { return engine_; }
  const SchedulerOptions& options() const { return options_; }

  // For inspect():
  const std::map<std::string, std::unique_ptr<PoolRunner>>& runners() const { return runners_; }
  size_t n_waiting() const { return waiting_.size(); }
  const Totals& totals() const { return totals_; }

 private:
  void run();
  bool take_commands();
  void write_board();
  Result<std::string> checked_kv(const std::string& kv) const;
  Status know_kv(const std::string& kv);  // with the lock held
  PoolRunner& runner(const std::string& kv);
  void admit();
  void step();

  Engine& engine_;
  const SchedulerOptions options_;
  std::map<std::string, std::unique_ptr<PoolRunner>> runners_;
  std::vector<std::unique_ptr<Job>> waiting_;  // in the order they came
  Totals totals_;
  OpTrace trace_;  // of the engine's ops, with options_.trace_ops

  mutable std::mutex board_mutex_;  // guards the board
  Board board_;
  Clock::time_point board_written_ = {};

  mutable std::mutex mutex_;
  std::condition_variable wake_, looked_;
  std::deque<std::unique_ptr<Job>> incoming_;
  std::vector<uint64_t> cancelled_;
  std::deque<std::function<void()>> looks_;
  std::string default_kv_;
  std::vector<std::string> known_kv_;  // formats with a pool, or about to have one
  size_t n_queued_ = 0;                // incoming and waiting
  uint64_t last_id_ = 0;
  bool stopping_ = false, cancel_all_ = false, stopped_ = false;
  std::string failure_;
  std::atomic<bool> news_ = false;  // something came that a run-ahead must look at
  std::thread thread_;
};

}  // namespace ridge::serve
