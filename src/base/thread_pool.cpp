#include "base/thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/limits.h"
#include "base/result.h"

namespace ridge {
namespace {

using namespace std::chrono_literals;

// A decode step forks every few microseconds to a few hundred: spinning this long (20 to 50 us) bridges most gaps,
// and an idle pool still goes to sleep.
constexpr int kSpins = 1000;
// The caller spins longer for workers inside a region: on a quiet machine their last tasks end before it would sleep.
constexpr int kCallerSpins = 5 * kSpins;
// A worker that waited so long for a processor lets the others work alone for a while, twice as long each time that the
// end of its rest did not help.
constexpr int64_t kLateNanoseconds = 200'000;
constexpr std::chrono::nanoseconds kLeastRest = 10ms, kMostRest = 320ms;

// state_: workers inside, whether the region is open, the number of the region.
constexpr uint32_t kOpen = 1 << 13, kInside = kOpen - 1, kRegion = kOpen << 1;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// The system's number of this thread; 0 where run_delay() has nothing to read.
int thread_number() {
#ifdef __linux__
  return int(gettid());
#else
  return 0;
#endif
}

/// Nanoseconds that a thread was kept waiting for a processor so far; 0 where the kernel does not count them.
int64_t run_delay(int id) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", id);
  std::FILE* const file = std::fopen(path, "r");
  if (!file) return 0;
  long long ran = 0, waited = 0;
  if (std::fscanf(file, "%lld %lld", &ran, &waited) != 2) waited = 0;
  std::fclose(file);
  return waited;
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads > 0 ? n_threads : default_threads()) {
  RIDGE_CHECK(n_threads_ <= 4096, "{} threads", n_threads_);
  try {
    // All workers are there before the first one looks for its own.
    for (int i = 1; i < n_threads_; ++i) workers_.push_back(std::make_unique<Worker>());
    for (int i = 1; i < n_threads_; ++i) workers_[size_t(i - 1)]->thread = std::thread([this, i] { work_forever(i); });
  } catch (const std::system_error& error) {
    const auto started = [](const auto& worker) { return worker->thread.joinable(); };
    const auto n_started = std::ranges::count_if(workers_, started);
    stop();
    throw_error(ErrorKind::failure, "cannot start thread {} of {}: {} (use fewer threads)", n_started + 1, n_threads_,
                error.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true);
  state_.fetch_add(kRegion);
  state_.notify_all();
  for (const auto& worker : workers_) {
    worker->resting.store(false);
    worker->resting.notify_all();
    if (worker->thread.joinable()) worker->thread.join();
  }
}

void ThreadPool::run(int64_t n_tasks, const void* context, Call call) {
  if (n_tasks <= 0) return;
  if (n_resting_ > 0) end_rests();
  if (n_tasks == 1 || n_resting_ == n_threads_ - 1) {
    for (int64_t task = 0; task < n_tasks; ++task) call(context, task, 0);
    return;
  }
  n_tasks_ = n_tasks;
  context_ = context;
  call_ = call;
  next_task_.store(0, std::memory_order_relaxed);
  // Nobody is inside, so the number of the region is all there is to change.
  const uint32_t number = state_.load(std::memory_order_relaxed) + kRegion;
  state_.store(number | kOpen, std::memory_order_release);
  state_.notify_all();
  work(0);
  // Who has not come by now finds the door closed: all tasks are taken.
  if ((state_.fetch_and(~kOpen) & kInside) != 0) wait_for_workers();
  if (has_error_.load()) {
    has_error_.store(false);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

/// Returns when every worker has left the region, whose description may change then.
void ThreadPool::wait_for_workers() {
  const auto is_empty = [&] { return (state_.load() & kInside) == 0; };
  for (int spins = 0; spins < kCallerSpins; ++spins) {
    if (is_empty()) return;
    pause_cpu();
  }
  for (const auto& worker : workers_) worker->delay = worker->inside.load() ? run_delay(worker->id) : INT64_MAX;
  while (!is_empty()) {
    caller_sleeps_.store(1);
    if (is_empty()) break;  // the last one may have left before it could see that this thread sleeps
    caller_sleeps_.wait(1);
  }
  for (const auto& worker : workers_)
    if (worker->delay != INT64_MAX && run_delay(worker->id) - worker->delay > kLateNanoseconds) let_rest(*worker);
}

void ThreadPool::let_rest(Worker& worker) {
  const Clock::time_point now = Clock::now();
  const bool again = now - worker.rest_end < worker.rest;
  worker.rest = again ? std::min<Clock::duration>(2 * worker.rest, kMostRest) : kLeastRest;
  worker.rest_end = now + worker.rest;
  if (!worker.resting.exchange(true)) ++n_resting_;
}

void ThreadPool::end_rests() {
  const Clock::time_point now = Clock::now();
  for (const auto& worker : workers_)
    if (worker->resting.load(std::memory_order_relaxed) && worker->rest_end <= now) {
      worker->resting.store(false);
      worker->resting.notify_one();
      --n_resting_;
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

/// Goes into an open region other than the one seen last; false where there is none.
bool ThreadPool::enter(uint32_t& seen) {
  uint32_t state = state_.load(std::memory_order_acquire);
  while ((state & kOpen) != 0 && (state & ~(kInside | kOpen)) != seen)
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) {
      seen = state & ~(kInside | kOpen);
      return true;
    }
  return false;
}

void ThreadPool::work_forever(int thread) {
  Worker& self = *workers_[size_t(thread - 1)];
  self.id.store(thread_number());
  uint32_t seen = 0;
  while (true) {
    self.resting.wait(true);
    const uint32_t before = state_.load();
    if (stop_.load()) return;  // later, a wait for `before` would miss the end
    bool entered = false;
    for (int spins = 0; spins < kSpins && !(entered = enter(seen)); ++spins) pause_cpu();
    if (!entered) {
      // An open region whose tasks this thread has seen taken changes before there is something to do.
      if (state_.load() == before) state_.wait(before);
      continue;
    }
    self.inside.store(true, std::memory_order_relaxed);
    work(thread);
    self.inside.store(false, std::memory_order_relaxed);
    const uint32_t left = state_.fetch_sub(1);
    if ((left & (kOpen | kInside)) == 1 && caller_sleeps_.exchange(0) != 0) caller_sleeps_.notify_one();
  }
}

}  // namespace ridge
