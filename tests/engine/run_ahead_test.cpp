#include "engine/decode/run_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "ridge/error.h"

namespace ridge {
namespace {

/// A device on a thread of its own: step s of sequence q gives 100 s + q. Stops delivering at step `dies_at`.
class ThreadSteps final : public DeviceSteps {
 public:
  ThreadSteps(int n_seq, int64_t dies_at = INT64_MAX) : n_seq_(n_seq), dies_at_(dies_at), thread_([this] { work(); }) {}
  ~ThreadSteps() override {
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void launch(int64_t step) override {
    {
      const std::lock_guard lock(mutex_);
      EXPECT_EQ(step, n_launched_);
      queue_.push_back(step);
      ++n_launched_;
    }
    most_ahead_ = std::max(most_ahead_, n_launched_ - n_read_);
    wake_.notify_all();
  }
  bool read(int64_t step, std::span<int32_t> tokens) override {
    if (n_delivered_.load(std::memory_order_acquire) <= step) return false;
    n_read_ = step + 1;
    for (int q = 0; q < n_seq_; ++q) tokens[size_t(q)] = int32_t(100 * step + q);
    return true;
  }
  bool idle() override {
    const std::lock_guard lock(mutex_);
    return n_done_ == n_launched_;
  }
  void finish() override {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return n_done_ == n_launched_; });
  }

  int64_t n_launched() const { return n_launched_; }
  int64_t most_ahead() const { return most_ahead_; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return quit_ || !queue_.empty(); });
      if (quit_) return;
      const int64_t step = queue_.front();
      queue_.pop_front();
      if (step < dies_at_) n_delivered_.store(step + 1, std::memory_order_release);
      ++n_done_;
      wake_.notify_all();
    }
  }

  const int n_seq_;
  const int64_t dies_at_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<int64_t> queue_;
  bool quit_ = false;
  int64_t n_launched_ = 0, n_done_ = 0, n_read_ = 0, most_ahead_ = 0;
  std::atomic<int64_t> n_delivered_{0};
  std::thread thread_;  // last: it uses the rest
};

/// Up to so many steps more; the steps that were queued and those whose tokens were handed on.
std::pair<int64_t, int64_t> run(RunAhead& loop, int64_t n_steps,
                                const std::function<bool(std::span<const int32_t>)>& on_tokens) {
  const int64_t launched = loop.n_launched(), taken = loop.n_taken();
  loop.run([&] { return loop.n_launched() < launched + n_steps; }, on_tokens);
  return {loop.n_launched() - launched, loop.n_taken() - taken};
}

TEST(RunAhead, HandsOnAllTokensInOrder) {
  for (const int depth : {1, 2, 7, 1000}) {
    ThreadSteps steps(3);
    RunAhead loop(steps, 3, depth);
    std::vector<int32_t> tokens, expected;
    const auto [n_launched, n_taken] = run(loop, 200, [&](std::span<const int32_t> some) {
      tokens.insert(tokens.end(), some.begin(), some.end());
      return true;
    });
    for (int s = 0; s < 200; ++s)
      for (int q = 0; q < 3; ++q) expected.push_back(100 * s + q);
    EXPECT_EQ(tokens, expected);
    EXPECT_EQ(n_taken, 200);
    EXPECT_EQ(n_launched, 200) << "never more than asked for";
    EXPECT_EQ(steps.most_ahead(), std::min(depth, 200));
  }
}

TEST(RunAhead, StopsWithTheSurplusCounted) {
  for (const int depth : {1, 2, 5}) {
    ThreadSteps steps(1);
    RunAhead loop(steps, 1, depth);
    const auto [n_launched, n_taken] = run(loop, 100, [&](std::span<const int32_t> token) { return token[0] < 700; });
    EXPECT_EQ(n_taken, 8);
    EXPECT_EQ(n_launched, 8 + depth - 1);
    EXPECT_TRUE(steps.idle());
  }
}

TEST(RunAhead, LaterCallsGoOnCounting) {
  ThreadSteps steps(1);
  RunAhead loop(steps, 1, 3);
  const auto take_none = [](std::span<const int32_t>) { return true; };
  EXPECT_EQ(run(loop, 0, take_none).first, 0);
  EXPECT_EQ(run(loop, 4, [](std::span<const int32_t>) { return false; }).first, 3);
  std::vector<int32_t> tokens;
  run(loop, 2, [&](std::span<const int32_t> token) { return tokens.push_back(token[0]), true; });
  EXPECT_EQ(tokens, (std::vector<int32_t>{300, 400}));
}

TEST(RunAhead, NothingRunsAfterAnError) {
  ThreadSteps steps(1);
  RunAhead loop(steps, 1, 4);
  EXPECT_THROW(run(loop, 10, [](std::span<const int32_t>) -> bool { throw std::runtime_error("user"); }),
               std::runtime_error);
  EXPECT_EQ(steps.n_launched(), 4);
  EXPECT_TRUE(steps.idle());
}

TEST(RunAhead, ADeviceThatEndsWithoutTokensIsAnError) {
  ThreadSteps steps(1, 5);
  RunAhead loop(steps, 1, 2);
  int64_t n = 0;
  try {
    run(loop, 10, [&](std::span<const int32_t>) { return ++n, true; });
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    EXPECT_NE(std::string(error.what()).find("step 5"), std::string::npos) << error.what();
  }
  EXPECT_EQ(n, 5);
}

}  // namespace
}  // namespace ridge
