// ThreadPool: every task once, exceptions out and the pool alive after them, thousands of regions too small to notice.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "ridge/error.h"

namespace ridge {
namespace {

class ThreadPoolOf : public testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolOf, testing::Values(1, 2, 3, 4));

TEST_P(ThreadPoolOf, RunsEveryTaskExactlyOnceWithAValidThreadNumber) {
  for (const int64_t n_tasks : {0, 1, 2, 3, 4, 5, 100, 10000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(n_tasks));
    std::atomic<bool> valid{true};
    pool_.for_each(n_tasks, [&](int64_t task, int thread) {
      ++runs[size_t(task)];
      if (thread < 0 || thread >= pool_.size()) valid = false;
    });
    EXPECT_TRUE(valid);
    for (const auto& count : runs) ASSERT_EQ(count, 1) << n_tasks;
  }
}

TEST_P(ThreadPoolOf, WhatTasksWroteIsVisibleAfterTheRegion) {
  std::vector<int64_t> squares(1000);  // plain memory: a missing release or acquire is a race
  pool_.for_each(1000, [&](int64_t task, int) { squares[size_t(task)] = task * task; });
  EXPECT_EQ(std::accumulate(squares.begin(), squares.end(), int64_t(0)), 332833500);
}

TEST_P(ThreadPoolOf, OneThreadNumberIsNeverUsedTwiceAtATime) {
  std::vector<int> inside(size_t(pool_.size()), 0);  // plain on purpose: per-thread scratch relies on this
  bool clash = false;
  for (int region = 0; region < 50; ++region)
    pool_.for_each(64, [&](int64_t, int thread) {
      if (inside[size_t(thread)]++ != 0) clash = true;
      --inside[size_t(thread)];
    });
  EXPECT_FALSE(clash);
}

TEST_P(ThreadPoolOf, AnExceptionComesOutAndThePoolLives) {
  for (int round = 0; round < 50; ++round) {
    for (const int64_t thrower : {0, 7, 63}) {
      try {
        pool_.for_each(64, [&](int64_t task, int) {
          if (task == thrower) throw std::runtime_error("task " + std::to_string(task));
        });
        FAIL() << "the exception was lost";
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(std::string(error.what()), "task " + std::to_string(thrower));
      }
    }
    std::atomic<int> count{0};
    pool_.for_each(64, [&](int64_t, int) { ++count; });
    ASSERT_EQ(count, 64) << "round " << round;
  }
}

TEST_P(ThreadPoolOf, WhenEveryTaskThrowsOneOfThemComesOut) {
  for (int round = 0; round < 50; ++round)
    EXPECT_THROW(pool_.for_each(16, [](int64_t, int) { throw Error(ErrorKind::failure, "all"); }), Error);
}

TEST_P(ThreadPoolOf, ManyTinyRegions) {
  std::atomic<int64_t> sum{0};
  int64_t expected = 0;
  for (int region = 0; region < 4000; ++region) {
    const int64_t n_tasks = region % 5;
    pool_.for_each(n_tasks, [&](int64_t task, int) { sum.fetch_add(task + 1, std::memory_order_relaxed); });
    expected += n_tasks * (n_tasks + 1) / 2;
  }
  EXPECT_EQ(sum, expected);
}

TEST_P(ThreadPoolOf, WakesFromSleep) {
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than the pool spins
    std::atomic<int> count{0};
    pool_.for_each(8, [&](int64_t, int) { ++count; });
    EXPECT_EQ(count, 8);
  }
}

/// Where a signal holds a thread: as if another program had its processor.
std::atomic<bool> hold{false}, held{false};
std::atomic<int> n_held{0};
void hold_thread(int) {
  held = true;
  ++n_held;
  while (hold) usleep(100);
  held = false;
}

class HeldWorker : public testing::Test {
 protected:
  HeldWorker() { std::signal(SIGUSR1, hold_thread); }
  ~HeldWorker() override {
    hold = false;
    while (held) usleep(100);
    std::signal(SIGUSR1, SIG_DFL);
  }
  /// The worker's thread, as soon as it takes a task: on a busy machine it may rest.
  pthread_t find_worker() {
    std::atomic<pthread_t> worker{};
    while (worker == pthread_t{})
      pool_.for_each(2, [&](int64_t, int thread) {
        if (thread == 1) worker = pthread_self();
        else usleep(1000);
      });
    return worker;
  }
  ThreadPool pool_{2};
};

TEST_F(HeldWorker, RegionsGoOnWithoutAWorkerThatHasNoProcessor) {
  const pthread_t worker = find_worker();
  hold = true;
  ASSERT_EQ(pthread_kill(worker, SIGUSR1), 0);
  while (!held) usleep(10);
  for (int region = 0; region < 1000; ++region) {
    std::atomic<int> count{0};
    pool_.for_each(8, [&](int64_t, int thread) { count += thread == 0; });
    ASSERT_EQ(count, 8) << "the caller takes all tasks";
  }
  hold = false;
  while (held) usleep(10);
  EXPECT_NE(find_worker(), pthread_self()) << "it takes part again";
}

TEST_F(HeldWorker, ATaskThatHasBegunIsWaitedFor) {
  const pthread_t worker = find_worker();
  const int before = n_held;
  std::vector<int> done(2, 0);  // plain memory: the end of the region must make it visible
  std::thread releaser;
  while (!releaser.joinable()) {
    std::atomic<bool> in_task{false};
    pool_.for_each(2, [&](int64_t task, int thread) {
      if (thread == 1) {
        in_task = true;
        for (int i = 0; i < 200000 && n_held == before; ++i) usleep(10);  // the signal comes
      } else {
        for (int i = 0; i < 1000 && !in_task; ++i) usleep(10);
        if (in_task) {
          hold = true;
          pthread_kill(worker, SIGUSR1);
          while (!held) usleep(10);
          releaser = std::thread([] {
            usleep(5000);  // longer than the caller spins
            hold = false;
          });
        }
      }
      done[size_t(task)] = 1;
    });
  }
  releaser.join();
  EXPECT_EQ(done, (std::vector<int>{1, 1}));
}

TEST(ThreadPool, ThreadsThatShareAProcessorWithABusyOneDoEveryTaskOnce) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
    }
  });
  {
    ThreadPool pool(3);  // threads begin with the mask of who starts them
    for (int region = 0; region < 200; ++region) {
      std::vector<std::atomic<int>> runs(32);
      pool.for_each(32, [&](int64_t task, int) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(5);
        while (std::chrono::steady_clock::now() < end) {
        }
        ++runs[size_t(task)];
      });
      for (const auto& count : runs) ASSERT_EQ(count, 1) << region;
    }
  }
  stop = true;
  busy.join();
  sched_setaffinity(0, sizeof before, &before);
}

TEST(ThreadPool, SizesAndLifetimes) {
  EXPECT_EQ(ThreadPool(0).size(), available_processors());
  EXPECT_EQ(ThreadPool(3).size(), 3);
  EXPECT_THROW(ThreadPool(100000), Error);
  for (int i = 0; i < 200; ++i) ThreadPool pool(4);  // destroyed at once, perhaps before its threads have run
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these reserve address space of their own
TEST(ThreadPoolDeathTest, ASystemWithoutThreadsIsAnErrorNotACrash) {
  const auto start_too_many = [] {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t space = rlim_t(pages * sysconf(_SC_PAGESIZE) + (64 << 20));  // room for a few stacks of 8 MiB
    const rlimit limit{space, space};
    setrlimit(RLIMIT_AS, &limit);
    try {
      ThreadPool pool(1000);
    } catch (const Error& error) {
      _exit(std::string(error.what()).find("of 1000") != std::string::npos ? 42 : 1);
    }
    _exit(0);
  };
  EXPECT_EXIT(start_too_many(), testing::ExitedWithCode(42), "");
}
#endif

TEST(Rng, KnownAnswersOfSplitMix64) {
  Rng rng(1234567);
  EXPECT_EQ(rng.next(), 6457827717110365317ull);
  EXPECT_EQ(rng.next(), 3203168211198807973ull);
  EXPECT_EQ(rng.next(), 9817491932198370423ull);
}

TEST(Rng, MomentsOfUniformAndNormal) {
  Rng rng(5);
  double uniform = 0, normal = 0, square = 0, fourth = 0;
  constexpr int kNumbers = 200000;
  for (int i = 0; i < kNumbers; ++i) {
    const double u = rng.uniform(), n = rng.normal();
    ASSERT_TRUE(u >= 0 && u < 1 && std::isfinite(n));
    uniform += u, normal += n, square += n * n, fourth += n * n * n * n;
  }
  // Five standard errors.
  EXPECT_NEAR(uniform / kNumbers, 0.5, 5 * 0.289 / std::sqrt(kNumbers));
  EXPECT_NEAR(normal / kNumbers, 0, 5 / std::sqrt(kNumbers));
  EXPECT_NEAR(square / kNumbers, 1, 5 * std::sqrt(2.0 / kNumbers));
  EXPECT_NEAR(fourth / kNumbers, 3, 5 * std::sqrt(96.0 / kNumbers));
}

}  // namespace
}  // namespace ridge
