// Devices of several processes, here threads that know of each other only NCCL's id: sums, columns and how waits end.
#include "op/collective/process_rank_cuda.h"

#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>

#include "device_data.h"
#include "gpu/graph.h"

namespace ridge {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ProcessRankCuda : public testing::Test {
 protected:
  void SetUp() override {
    n_devices_ = int(gpu::query_devices().devices.size());
    if (n_devices_ < 2) GTEST_SKIP() << "there are " << n_devices_ << " devices, two are needed";
    if (const std::string why = gpu::why_no_nccl(); !why.empty()) GTEST_SKIP() << why;
  }
  static constexpr int64_t kFloats = 100'003;
  /// `values`: kFloats ones on the device.
  using Body = std::function<void(ProcessRank&, const gpu::Stream&, float* values)>;
  /// Runs `body` as every one of n ranks, rank r on device r.
  static void on_processes(int n, const ProcessRankOptions& options, const Body& body) {
    std::barrier everyone(n);  // threads have one driver: nobody allocates while a kernel waits
    const gpu::NcclId id = gpu::make_nccl_id();
    std::vector<std::thread> threads;
    for (int r = 0; r < n; ++r)
      threads.emplace_back([&, r] {
        try {
          ProcessRankOptions own = options;
          own.rank = own.device = r, own.n_ranks = n;
          own.most_floats = 1 << 20;
          own.name = [](int of) { return fmt::format("rank {}", of); };
          if (!own.ended) own.ended = [] { return -1; };
          gpu::use_device(r);
          ProcessRank rank(id, own);
          const gpu::Stream stream;
          const std::vector<float> ones(size_t(kFloats), 1.0f);
          const gpu::Buffer values = gpu::to_device(stream, std::span<const float>(ones));
          stream.synchronize();
          everyone.arrive_and_wait();
          body(rank, stream, values.as<float>());
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << r << ": " << error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
  }

  int n_devices_ = 0;
};

gpu::Buffer to_device(const gpu::Stream& stream, const std::vector<float>& values) {
  return gpu::to_device(stream, std::span<const float>(values));
}
std::vector<float> down(const gpu::Stream& stream, const float* values, int64_t n) {
  std::vector<float> all(size_t(n), 0.0f);
  gpu::download(stream, all.data(), values, 4 * n);
  stream.synchronize();
  return all;
}
std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    return error.what();
  }
  return "nothing was thrown";
}
double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST_F(ProcessRankCuda, SumsWholeNumbersInAnyOrder) {
  for (int n = 2; n <= std::min(n_devices_, 3); ++n) {
    on_processes(n, {}, [&](ProcessRank& rank, const gpu::Stream& stream, float* values) {
      EXPECT_EQ(rank.all_reduce_kernel(1), "nccl");
      EXPECT_EQ(rank.gather_columns_kernel(), "nccl");
      for (const int64_t count : {int64_t(1), int64_t(2), int64_t(1001), kFloats}) {
        std::vector<float> own, sum;
        for (int64_t i = 0; i < count; ++i) {
          own.push_back(float(i % 1000 + rank.rank()));
          sum.push_back(float(n * (i % 1000) + n * (n - 1) / 2));
        }
        gpu::upload(stream, values, own.data(), 4 * count);
        rank.step([&] { rank.all_reduce(stream, values, count, true); });
        EXPECT_EQ(down(stream, values, count), sum) << count << " of " << n;
        rank.check();
      }
    });
  }
}

/// [n_rows, width] of a rank.
std::vector<float> columns_of(int rank, int64_t n_rows, int64_t width) {
  std::vector<float> values;
  for (int64_t i = 0; i < n_rows * width; ++i) values.push_back(float(1000 * rank + i));
  return values;
}
std::vector<float> whole_of(int n_rows, std::span<const int64_t> borders) {
  std::vector<float> whole(size_t(n_rows * borders.back()));
  for (size_t r = 0; r + 1 < borders.size(); ++r) {
    const int64_t width = borders[r + 1] - borders[r];
    const std::vector<float> part = columns_of(int(r), n_rows, width);
    for (int row = 0; row < n_rows; ++row)
      std::copy_n(part.begin() + row * width, width, whole.begin() + row * borders.back() + borders[r]);
  }
  return whole;
}

/// A recorded gather replays behind larger ones, for which its staging memory was too small.
TEST_F(ProcessRankCuda, ARecordedStepOutlivesLargerOnes) {
  if (gpu::query_devices().devices[0].name != "emulated")
    GTEST_SKIP() << "threads of one driver do not allocate while a kernel waits";
  constexpr int kMany = 40;
  const std::vector<int64_t> borders{0, 300, 517};
  const gpu::NcclId unused = gpu::make_nccl_id();
  EXPECT_NE(unused, gpu::make_nccl_id());
  on_processes(2, {}, [&](ProcessRank& rank, const gpu::Stream& stream, float*) {
    const int64_t width = borders[size_t(rank.rank()) + 1] - borders[size_t(rank.rank())];
    const gpu::Buffer one = to_device(stream, columns_of(rank.rank(), 1, width));
    const gpu::Buffer many = to_device(stream, columns_of(rank.rank(), kMany, width));
    const gpu::Buffer whole_one(4 * borders.back()), whole_many(4 * kMany * borders.back());
    const auto gather_one = [&] {
      rank.gather_columns(stream, one.as<float>(), 1, borders, whole_one.as<float>(), true);
    };
    gather_one();
    const gpu::Graph graph(stream, gather_one);
    for (int round = 0; round < 3; ++round) {
      gpu::clear(stream, whole_one.as<void>(), whole_one.bytes());
      rank.step([&] { graph.launch(stream); });
      EXPECT_EQ(down(stream, whole_one.as<float>(), borders.back()), whole_of(1, borders)) << round;
      rank.gather_columns(stream, many.as<float>(), kMany, borders, whole_many.as<float>(), true);
      EXPECT_EQ(down(stream, whole_many.as<float>(), kMany * borders.back()), whole_of(kMany, borders)) << round;
    }
  });
}

TEST_F(ProcessRankCuda, ARankThatDoesNotComeIsNamedInTime) {
  const auto start = std::chrono::steady_clock::now();
  on_processes(
      2, {.timeout_s = 2, .ends_together = false}, [&](ProcessRank& rank, const gpu::Stream& stream, float* values) {
        const auto sum = [&] { rank.step([&] { rank.all_reduce(stream, values, 1000, true); }); };
        sum();
        stream.synchronize();
        if (rank.rank() == 1) return;
        for (int i = 0; i < 20; ++i) sum();
        stream.synchronize();  // returns although rank 1 never comes
        for (int i = 0; i < 2; ++i)
          EXPECT_THAT(failure_of([&] { rank.check(); }),
                      AllOf(HasSubstr("rank 0: no answer from rank 1 within 2 s"), HasSubstr("--rank-timeout")));
        EXPECT_THAT(failure_of(sum), HasSubstr("no answer from rank 1"));
      });
  EXPECT_LT(seconds_since(start), 30);
}

TEST_F(ProcessRankCuda, ARankWhoseProcessIsGoneIsNamedAtOnce) {
  std::atomic<int> gone = -1;
  const auto start = std::chrono::steady_clock::now();
  on_processes(2, {.timeout_s = 600, .ends_together = false, .ended = [&] { return gone.load(); }},
               [&](ProcessRank& rank, const gpu::Stream& stream, float* values) {
                 if (rank.rank() == 1) return gone.store(1);
                 rank.step([&] { rank.all_reduce(stream, values, 1000, true); });
                 stream.synchronize();
                 EXPECT_THAT(failure_of([&] { rank.check(); }), HasSubstr("rank 1 has ended: a step that GPUs share"));
               });
  EXPECT_LT(seconds_since(start), 30);
}

TEST_F(ProcessRankCuda, ARankThatFailsEndsItsOwnWaits) {
  on_processes(2, {.timeout_s = 600, .ends_together = false},
               [&](ProcessRank& rank, const gpu::Stream& stream, float* values) {
                 if (rank.rank() == 1) return;
                 rank.all_reduce(stream, values, 1000, true);
                 rank.end();
                 stream.synchronize();
                 EXPECT_THAT(failure_of([&] { rank.check(); }), HasSubstr("one of them failed"));
               });
}

/// Many steps that are queued ahead are no hang: time runs from the last one that ended.
TEST_F(ProcessRankCuda, StepsThatEndOneByOneAreInTime) {
  on_processes(2, {.timeout_s = 3, .ends_together = true},
               [&](ProcessRank& rank, const gpu::Stream& stream, float* values) {
                 for (int i = 0; i < 5; ++i) {
                   if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(900));
                   rank.step([&] { rank.all_reduce(stream, values, 1000, true); });
                 }
                 EXPECT_EQ(down(stream, values, 1)[0], 32);
                 rank.check();
               });
}

/// Whoever waits elsewhere, for work or in a call of NCCL, does not look: the process ends all the same.
TEST_F(ProcessRankCuda, AProcessThatDoesNotLookEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    on_processes(2, {.timeout_s = 0.5, .ends_together = false},
                 [&](ProcessRank& rank, const gpu::Stream& stream, float* values) {
                   if (rank.rank() == 0) rank.step([&] { rank.all_reduce(stream, values, 1000, true); });
                   std::this_thread::sleep_for(std::chrono::seconds(60));
                 });
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(1), "error: rank 0: no answer from rank 1 within 0.5 s");
}

TEST_F(ProcessRankCuda, OneShotCannotServeSeveralProcesses) {
  ProcessRankOptions options{.n_ranks = 2, .forced = {{"all_reduce", "one-shot"}}, .most_floats = 10};
  try {
    const ProcessRank rank(gpu::make_nccl_id(), options);
    ADD_FAILURE() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("one-shot: the GPUs belong to several processes"));
  }
  options = {.n_ranks = 9, .most_floats = 10};
  try {
    const ProcessRank rank(gpu::make_nccl_id(), options);
    ADD_FAILURE() << "started";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "--tp 9: up to 8 GPUs hold a model together");
  }
}

}  // namespace
}  // namespace ridge
