// A small fork-join pool for decode: threads spin briefly between the hundreds of short parallel regions of a step,
// then sleep. One region at a time; the calling thread works too.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace ridge {

class ThreadPool {
 public:
  /// `n_threads` >= 1 workers including the caller; 0 means one per available processor. Throws Error(failure) when the
  /// system has no more threads.
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
  void run(int64_t n_tasks, const void* context, Call call);
  void stop();
  void work(int thread);
  void worker(int thread);

  int n_threads_;
  std::vector<std::thread> threads_;
  // One region: its description, then the shared counters. `epoch_` publishes the description.
  int64_t n_tasks_ = 0;
  const void* context_ = nullptr;
  Call call_ = nullptr;
  std::exception_ptr error_;
  std::atomic<bool> has_error_{false};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<int> running_{0};
};

/// Processors this process may run on (affinity mask respected).
int available_processors();

}  // namespace ridge
