// A small fork-join pool for decode: threads spin briefly between the hundreds of short parallel regions of a step,
// then sleep. One region at a time; the calling thread works too. It waits for workers that have begun a task, not for
// those that have no processor: their tasks go to the others. A worker that other programs stop in the middle of a task
// rests for some milliseconds, so that the region goes on without it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

namespace ridge {

class ThreadPool {
 public:
  /// `n_threads` >= 1 workers including the caller; 0 means default_threads() (limits.h). Throws Error(failure)
  /// when the system has no more threads.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }

  /// Calls body(task, thread) for every task in [0, n_tasks), handed out one by one in order; returns when all are
  /// done. An exception from a task is rethrown here after the region has ended. Not reentrant.
  template <class Body>
  void for_each(int64_t n_tasks, const Body& body) {
    run(n_tasks, &body,
        [](const void* context, int64_t task, int thread) { (*static_cast<const Body*>(context))(task, thread); });
  }

 private:
  using Call = void (*)(const void* context, int64_t task, int thread);
  using Clock = std::chrono::steady_clock;
  struct alignas(64) Worker {
    std::thread thread;
    std::atomic<int> id{0};            // the kernel's; 0 until it runs
    std::atomic<bool> inside{false};   // a region
    std::atomic<bool> resting{false};  // it sleeps through regions
    Clock::time_point rest_end = {};
    Clock::duration rest = {};
    int64_t delay = 0;  // as run_delay() said last
  };

  void run(int64_t n_tasks, const void* context, Call call);
  void stop();
  void work(int thread);
  void work_forever(int thread);
  bool enter(uint32_t& seen);
  void wait_for_workers();
  void let_rest(Worker& worker);
  void end_rests();

  int n_threads_;
  int n_resting_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
  // One region: its description, then the shared counters. `state_` publishes the description: the number of the
  // region, whether it is open, and how many workers are inside.
  int64_t n_tasks_ = 0;
  const void* context_ = nullptr;
  Call call_ = nullptr;
  std::exception_ptr error_;
  std::atomic<bool> has_error_{false};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> state_{0};
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<uint32_t> caller_sleeps_{0};
};

}  // namespace ridge
