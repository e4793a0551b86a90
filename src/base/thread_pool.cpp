#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <system_error>

#include "base/result.h"

namespace ridge {
namespace {

// A decode step forks every few microseconds to a few hundred: spinning this long (20 to 50 us) bridges most gaps,
// and an idle pool still goes to sleep.
constexpr int kSpins = 1000;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

int available_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, int(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads > 0 ? n_threads : available_processors()) {
  RIDGE_CHECK(n_threads_ <= 4096, "{} threads", n_threads_);
  try {
    for (int i = 1; i < n_threads_; ++i) threads_.emplace_back([this, i] { worker(i); });
  } catch (const std::system_error& error) {
    stop();
    throw_error(ErrorKind::failure, "cannot start thread {} of {}: {} (use fewer threads)", threads_.size() + 1,
                n_threads_, error.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(int64_t n_tasks, const void* context, Call call) {
  if (n_tasks <= 0) return;
  if (n_threads_ == 1 || n_tasks == 1) {
    for (int64_t task = 0; task < n_tasks; ++task) call(context, task, 0);
    return;
  }
  n_tasks_ = n_tasks;
  context_ = context;
  call_ = call;
  next_task_.store(0, std::memory_order_relaxed);
  running_.store(n_threads_ - 1, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  work(0);
  // Every worker must have left the region before its description may change.
  for (int spins = 0; running_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) pause_cpu();
    else std::this_thread::yield();
  }
  if (has_error_.load()) {
    has_error_.store(false);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadPool::work(int thread) {
  try {
    for (int64_t task; (task = next_task_.fetch_add(1, std::memory_order_relaxed)) < n_tasks_;)
      call_(context_, task, thread);
  } catch (...) {
    if (!has_error_.exchange(true)) error_ = std::current_exception();
    next_task_.store(n_tasks_, std::memory_order_relaxed);
  }
}

void ThreadPool::worker(int thread) {
  uint32_t seen = 0;
  while (true) {
    for (int spins = 0; epoch_.load(std::memory_order_acquire) == seen && spins < kSpins; ++spins) pause_cpu();
    epoch_.wait(seen, std::memory_order_acquire);
    if (stop_.load()) return;
    seen = epoch_.load(std::memory_order_acquire);
    work(thread);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace ridge
