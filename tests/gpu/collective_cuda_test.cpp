// Sums and gathers of several devices, a thread each: by packets bit for bit, NCCL where it is installed.
#include "op/collective/collective_cuda.h"

#include <gmock/gmock.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>

#include "device_data.h"
#include "gpu/graph.h"

namespace ridge {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kGuard = 5;  // floats before and behind, so that rows are not aligned to packets or to 16 bytes
constexpr float kGuarded = -77;

/// A device's floats between two margins.
class GuardedFloats {
 public:
  GuardedFloats(gpu::StreamHandle stream, const std::vector<float>& values) : n_(int64_t(values.size())) {
    std::vector<float> all(values.size() + 2 * kGuard, kGuarded);
    std::ranges::copy(values, all.begin() + kGuard);
    buffer_ = gpu::to_device(stream, std::span<const float>(all));
  }
  float* data() const { return buffer_.as<float>() + kGuard; }
  /// Checks the margins too.
  std::vector<float> down(const gpu::Stream& stream) const {
    std::vector<float> all(size_t(n_ + 2 * kGuard));
    gpu::download(stream, all.data(), buffer_.as<float>(), int64_t(all.size()) * 4);
    stream.synchronize();
    for (int i = 0; i < kGuard; ++i) {
      EXPECT_EQ(all[size_t(i)], kGuarded);
      EXPECT_EQ(all[all.size() - 1 - size_t(i)], kGuarded);
    }
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  int64_t n_;
  gpu::Buffer buffer_;
};

std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<uint32_t>(value));
  return result;
}

/// What rank `rank` gives: sizes far apart, so that the order of adding shows.
std::vector<float> values_of(int rank, int64_t n, uint64_t seed) {
  std::vector<float> values = normal_floats(1000 * seed + uint64_t(rank), n);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= std::ldexp(1.0f, int((i * 7 + size_t(rank) * 5) % 23));
  return values;
}

std::vector<float> sum_of(std::span<const std::vector<float>> values) {
  std::vector<float> sum = values[0];
  for (const std::vector<float>& more : values.subspan(1))
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  return sum;
}

std::vector<float> sum_of_ranks(int n_ranks, int64_t n, uint64_t seed) {
  std::vector<std::vector<float>> values;
  for (int r = 0; r < n_ranks; ++r) values.push_back(values_of(r, n, seed));
  return sum_of(values);
}

class CollectiveCuda : public testing::Test {
 protected:
  void SetUp() override {
    const gpu::DeviceReport report = gpu::query_devices();
    n_devices_ = int(report.devices.size());
    if (n_devices_ < 2) GTEST_SKIP() << "there are " << n_devices_ << " devices, two are needed";
    n_processors_ = report.devices[0].n_processors;
  }

  std::unique_ptr<DeviceGroup> group(int n_ranks, DeviceGroupOptions options = {}) const {
    std::vector<int> devices;
    for (int d = 0; d < n_ranks; ++d) devices.push_back(n_ranks - 1 - d);  // a rank's number is not its device's
    if (options.most_floats == 0) options.most_floats = kPacketFloats;
    return std::make_unique<DeviceGroup>(devices, options);
  }
  /// Two, and as many as there are.
  std::vector<int> sizes() const {
    std::vector<int> all;
    for (int n = 2; n <= std::min(n_devices_, kMostDeviceRanks); ++n)
      if (n <= 3 || n == n_devices_ || n == kMostDeviceRanks) all.push_back(n);
    return all;
  }
  /// Runs `body` as every rank.
  static void on_ranks(DeviceGroup& group, const std::function<void(DeviceRank&, const gpu::Stream&)>& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < group.size(); ++r)
      threads.emplace_back([&, r] {
        try {
          DeviceRank& rank = group.rank(r);
          gpu::use_device(rank.device());
          const gpu::Stream stream;
          body(rank, stream);
        } catch (const std::exception& error) {
          ADD_FAILURE() << group.name(r) << ": " << error.what();
          group.end();
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  void check_sums(DeviceGroup& group, std::span<const int64_t> counts, bool overlap) const {
    on_ranks(group, [&](DeviceRank& rank, const gpu::Stream& stream) {
      for (const int64_t n : counts) {
        const GuardedFloats values(stream, values_of(rank.rank(), n, uint64_t(n)));
        rank.all_reduce(stream, values.data(), n, overlap);
        rank.synchronize(stream);
        EXPECT_EQ(bits(values.down(stream)), bits(sum_of_ranks(group.size(), n, uint64_t(n))))
            << n << " floats, " << group.name(rank.rank()) << " of " << group.size();
      }
    });
  }

  int n_devices_ = 0, n_processors_ = 0;
};

TEST_F(CollectiveCuda, SumsOfAnySizeInTheOrderOfRanks) {
  constexpr int64_t kCounts[] = {1, 2, 3, 4, 95, 96, 97, 767, 768, 769, 1, 3 * 768, 3 * 768 + 1, 5};
  for (const int n : sizes())
    for (const char* kernel : {"one-shot", "two-shot"})
      for (const bool overlap : {false, true})
        check_sums(*group(n, {.forced = {{"all_reduce", kernel}}}), kCounts, overlap);
}

TEST_F(CollectiveCuda, MoreThanAGridHolds) {
  const int64_t grid = int64_t(n_processors_) * kOneShotBlocks * kOneShotBlockFloats;
  const int64_t counts[] = {grid, 2 * grid + 1001, 10, grid + 1};
  for (const char* kernel : {"one-shot", "two-shot"})
    check_sums(*group(2, {.forced = {{"all_reduce", kernel}}, .most_floats = 2 * grid + 1001}), counts, true);
}

TEST_F(CollectiveCuda, ThousandsOfCallsWithChangingSizes) {
  constexpr int kRounds = 20, kCalls = 100;
  const auto group = this->group(2);
  on_ranks(*group, [&](DeviceRank& rank, const gpu::Stream& stream) {
    Rng rng(4);  // the same for all ranks
    for (int round = 0; round < kRounds; ++round) {
      std::vector<int64_t> counts;
      int64_t total = 0;
      for (int call = 0; call < kCalls; ++call) {
        counts.push_back(1 + int64_t(rng.next() % (call % 10 == 0 ? 3000 : 40)));
        total += counts.back();
      }
      const GuardedFloats values(stream, values_of(rank.rank(), total, uint64_t(round)));
      int64_t first = 0;
      for (const int64_t n : counts) {
        rank.all_reduce(stream, values.data() + first, n, true);
        first += n;
      }
      rank.synchronize(stream);
      ASSERT_EQ(bits(values.down(stream)), bits(sum_of_ranks(2, total, uint64_t(round)))) << "round " << round;
    }
  });
}

/// Both kernels share staging memory and stamps: sums that change between them by their size.
TEST_F(CollectiveCuda, SumsInOneAndTwoShotsTakeTurns) {
  if (n_devices_ < 3) GTEST_SKIP() << "there are " << n_devices_ << " devices";
  const int n_ranks = std::min(n_devices_, 4);
  const int64_t few = kOneShotFloats / (n_ranks - 1);
  const auto group = this->group(n_ranks);
  EXPECT_EQ(group->rank(0).all_reduce_kernel(few), "one-shot");
  EXPECT_EQ(group->rank(0).all_reduce_kernel(few + 1), "two-shot");
  on_ranks(*group, [&](DeviceRank& rank, const gpu::Stream& stream) {
    Rng rng(8);  // the same for all ranks
    const std::vector<float> own = values_of(rank.rank(), few + 500, 6);
    const std::vector<float> expected = sum_of_ranks(n_ranks, few + 500, 6);
    for (int round = 0; round < 6; ++round) {
      std::vector<GuardedFloats> sums;
      std::vector<int64_t> counts;
      for (int call = 0; call < 6; ++call) {
        counts.push_back(call % 2 == 0 ? few + 1 + int64_t(rng.next() % 499) : 1 + int64_t(rng.next() % 4000));
        sums.emplace_back(stream, std::vector<float>(own.begin(), own.begin() + counts.back()));
      }
      for (size_t call = 0; call < sums.size(); ++call) rank.all_reduce(stream, sums[call].data(), counts[call], true);
      rank.synchronize(stream);
      for (size_t call = 0; call < sums.size(); ++call)
        ASSERT_EQ(bits(sums[call].down(stream)),
                  bits(std::vector<float>(expected.begin(), expected.begin() + counts[call])))
            << "round " << round << ", call " << call;
    }
  });
}

TEST_F(CollectiveCuda, ARecordedGraphReplays) {
  constexpr int kRounds = 4, kReplays = 60;  // sums of sums: 3^60 times the values are still floats
  constexpr int64_t kMany = 2000, kFew = 10;
  for (const int n_ranks : sizes()) {
    if (n_ranks > 3) continue;
    const auto group = this->group(n_ranks);
    on_ranks(*group, [&](DeviceRank& rank, const gpu::Stream& stream) {
      const std::vector<float> own = values_of(rank.rank(), kMany, 5);
      const gpu::Buffer source = gpu::to_device(stream, std::span<const float>(own));
      const GuardedFloats many(stream, own), few(stream, std::vector<float>(own.begin(), own.begin() + kFew));
      const GuardedFloats whole(stream, std::vector<float>(size_t(kFew * n_ranks), 0.0f));
      std::vector<int64_t> borders;
      for (int r = 0; r <= n_ranks; ++r) borders.push_back(r * kFew);
      const gpu::Graph graph(stream, [&] {
        gpu::copy(stream, many.data(), source.as<float>(), 4 * kMany);
        rank.all_reduce(stream, many.data(), kMany, false);
        rank.all_reduce(stream, few.data(), kFew, true);
        rank.gather_columns(stream, many.data(), 1, borders, whole.data(), true);
      });
      const std::vector<float> expected = sum_of_ranks(n_ranks, kMany, 5);
      std::vector<float> expected_few(expected.begin(), expected.begin() + kFew), expected_whole;
      for (int replay = 1; replay < kReplays; ++replay)
        expected_few = sum_of(std::vector<std::vector<float>>(size_t(n_ranks), expected_few));
      for (int r = 0; r < n_ranks; ++r)
        expected_whole.insert(expected_whole.end(), expected.begin(), expected.begin() + kFew);
      for (int round = 0; round < kRounds; ++round) {
        gpu::copy(stream, few.data(), source.as<float>(), 4 * kFew);
        for (int replay = 0; replay < kReplays; ++replay) graph.launch(stream);
        rank.synchronize(stream);
        EXPECT_EQ(bits(many.down(stream)), bits(expected));
        EXPECT_EQ(bits(few.down(stream)), bits(expected_few));
        EXPECT_EQ(bits(whole.down(stream)), bits(expected_whole));
        EXPECT_TRUE(std::isfinite(expected_few[0]));
      }
      rank.all_reduce(stream, many.data(), kMany, true);  // and on without the graph
      rank.synchronize(stream);
      EXPECT_EQ(bits(many.down(stream)), bits(sum_of(std::vector<std::vector<float>>(size_t(n_ranks), expected))));
    });
  }
}

/// [n_rows, width] of rank `rank`: every bit pattern may come, NaNs too.
std::vector<float> columns_of(int rank, int64_t n_rows, int64_t width) {
  std::vector<float> values;
  Rng rng(uint64_t(100 + rank));
  for (int64_t i = 0; i < n_rows * width; ++i) values.push_back(std::bit_cast<float>(uint32_t(rng.next())));
  return values;
}

void check_gather(const DeviceGroup& group, DeviceRank& rank, const gpu::Stream& stream, int64_t n_rows,
                  std::span<const int64_t> borders) {
  const auto width = [&](int r) { return borders[size_t(r) + 1] - borders[size_t(r)]; };
  const GuardedFloats own(stream, columns_of(rank.rank(), n_rows, width(rank.rank())));
  const GuardedFloats whole(stream, std::vector<float>(size_t(n_rows * borders.back()), 0.0f));
  rank.gather_columns(stream, own.data(), n_rows, borders, whole.data(), true);
  rank.synchronize(stream);
  std::vector<float> expected(size_t(n_rows * borders.back()));
  for (int r = 0; r < group.size(); ++r) {
    const std::vector<float> part = columns_of(r, n_rows, width(r));
    for (int64_t row = 0; row < n_rows; ++row)
      std::copy_n(part.begin() + row * width(r), width(r),
                  expected.begin() + row * borders.back() + borders[size_t(r)]);
  }
  EXPECT_EQ(bits(whole.down(stream)), bits(expected)) << n_rows << " rows, " << group.name(rank.rank());
}

TEST_F(CollectiveCuda, GathersUnevenColumnsAmongSums) {
  for (const int n : sizes()) {
    const auto group = this->group(n);
    on_ranks(*group, [&](DeviceRank& rank, const gpu::Stream& stream) {
      Rng rng(9);  // the same for all ranks
      for (int round = 0; round < 12; ++round) {
        std::vector<int64_t> borders{0};
        for (int r = 0; r < n; ++r)  // rank `round` of the first rounds has nothing
          borders.push_back(borders.back() + (r == round ? 0 : 1 + int64_t(rng.next() % (r == 1 ? 1000 : 50))));
        check_gather(*group, rank, stream, 1 + round % 3, borders);
        const GuardedFloats values(stream, values_of(rank.rank(), 900, uint64_t(round)));
        rank.all_reduce(stream, values.data(), 900, true);
        rank.synchronize(stream);
        EXPECT_EQ(bits(values.down(stream)), bits(sum_of_ranks(n, 900, uint64_t(round))));
      }
      check_gather(*group, rank, stream, 0, std::vector<int64_t>(size_t(n) + 1, 0));
    });
  }
}

TEST_F(CollectiveCuda, GathersMoreThanAGridHolds) {
  const auto group = this->group(2);
  const int64_t width = int64_t(n_processors_) * kOneShotBlocks * kOneShotBlockFloats / 2 + 17;
  on_ranks(*group, [&](DeviceRank& rank, const gpu::Stream& stream) {
    check_gather(*group, rank, stream, 3, std::vector<int64_t>{0, width, width + 3});
  });
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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

TEST_F(CollectiveCuda, ARankThatDoesNotComeIsNamedInTime) {
  const auto group = this->group(std::min(n_devices_, 3), {.timeout_s = 0.3});
  const auto start = std::chrono::steady_clock::now();
  // The last rank makes the first call only.
  on_ranks(*group, [&](DeviceRank& rank, const gpu::Stream& stream) {
    const bool comes = rank.rank() < group->size() - 1;
    const GuardedFloats values(stream, values_of(rank.rank(), 1000, 1));
    rank.all_reduce(stream, values.data(), 1000, true);
    rank.synchronize(stream);
    if (!comes) return;
    // As many as a step has: only the first of them waits.
    for (int call = 0; call < 100; ++call) rank.all_reduce(stream, values.data(), 1000, true);
    const std::string name = group->name(group->size() - 1);
    EXPECT_THAT(failure_of([&] { rank.synchronize(stream); }),
                AllOf(HasSubstr("no answer from " + name), HasSubstr("within 0.3 s")));
    EXPECT_THAT(failure_of([&] { rank.check(); }), HasSubstr(name));
  });
  EXPECT_LT(seconds_since(start), 20);
}

/// Pairs of ranks beside two parts, whose sums come first: a rank of one part waits for one that itself waits.
TEST_F(CollectiveCuda, WhoDoesNotComeIsNamedThroughRanksThatWait) {
  if (n_devices_ < 4) GTEST_SKIP() << "there are " << n_devices_ << " devices";
  const auto group = this->group(4, {.timeout_s = 3});
  DeviceGroup& part = group->part(std::array{2, 3}, kPacketFloats);
  DeviceGroup& pair = group->part(std::array{0, 2}, 0);
  on_ranks(*group, [&](DeviceRank& rank, const gpu::Stream& stream) {
    const GuardedFloats values(stream, values_of(rank.rank(), 1000, 1));
    if (rank.rank() == 0)
      pair.rank(0).gather_columns(stream, values.data(), 10, std::array<int64_t, 3>{0, 100, 100}, values.data(), false);
    if (rank.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // rank 0 has waited longer when it gives up
      part.rank(0).all_reduce(stream, values.data(), 1000, false);
    }
    if (rank.rank() % 2 == 1) return;
    EXPECT_THAT(failure_of([&] { rank.synchronize(stream); }),
                AllOf(HasSubstr(group->name(2) + ": no answer from " + group->name(3)), HasSubstr("within 3 s")));
  });
}

TEST_F(CollectiveCuda, PartsOfAGroupAddAndGatherAmongThemselves) {
  if (n_devices_ < 4) GTEST_SKIP() << "there are " << n_devices_ << " devices";
  const auto group = this->group(4);
  DeviceGroup *const halves[] = {&group->part(std::array{0, 1}, 1000), &group->part(std::array{2, 3}, 1000)},
                     *const pairs[] = {&group->part(std::array{0, 2}, 0), &group->part(std::array{1, 3}, 0)};
  EXPECT_EQ(halves[1]->name(0), group->name(2));
  on_ranks(*group, [&](DeviceRank& rank, const gpu::Stream& stream) {
    const int half = rank.rank() / 2, place = rank.rank() % 2;
    for (int round = 0; round < 5; ++round) {
      const GuardedFloats values(stream, values_of(rank.rank(), 1000, 4));
      halves[half]->rank(place).all_reduce(stream, values.data(), 1000, true);
      // The first half hands on what it has.
      pairs[place]->rank(half).gather_columns(stream, values.data(), 10, std::array<int64_t, 3>{0, 100, 100},
                                              values.data(), false);
      rank.synchronize(stream);
      const std::vector<float> first[] = {values_of(0, 1000, 4), values_of(1, 1000, 4)};
      EXPECT_EQ(bits(values.down(stream)), bits(sum_of(first))) << group->name(rank.rank());
      check_gather(*group, rank, stream, 2, std::array<int64_t, 5>{0, 10, 10, 300, 301});
    }
  });
}

TEST_F(CollectiveCuda, AFailedRankEndsTheOthersWaits) {
  const auto group = this->group(2, {.timeout_s = 600});
  const auto start = std::chrono::steady_clock::now();
  on_ranks(*group, [&](DeviceRank& rank, const gpu::Stream& stream) {
    if (rank.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return group->end();
    }
    const GuardedFloats values(stream, values_of(0, 1000, 1));
    rank.all_reduce(stream, values.data(), 1000, true);
    EXPECT_THAT(failure_of([&] { rank.synchronize(stream); }), HasSubstr("one of them failed"));
  });
  EXPECT_LT(seconds_since(start), 60);
}

TEST_F(CollectiveCuda, ALateRankMayAllocateMeanwhile) {
  const auto group = this->group(2, {.timeout_s = 30});
  on_ranks(*group, [&](DeviceRank& rank, const gpu::Stream& stream) {
    const GuardedFloats values(stream, values_of(rank.rank(), 5000, 3));
    for (int round = 0; round < 5; ++round) {
      if (rank.rank() == round % 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        gpu::Buffer taken(64 << 20);
        const gpu::Buffer more(1 << 20);
        taken = gpu::Buffer();
      }
      rank.all_reduce(stream, values.data(), 5000, true);
    }
    rank.synchronize(stream);
    std::vector<float> expected = sum_of_ranks(2, 5000, 3);
    for (int round = 1; round < 5; ++round) expected = sum_of(std::vector<std::vector<float>>(2, expected));
    EXPECT_EQ(bits(values.down(stream)), bits(expected));
  });
}

TEST_F(CollectiveCuda, RefusesWhatCannotBe) {
  const auto message = [](std::vector<int> devices, const DeviceGroupOptions& options, ErrorKind kind) -> std::string {
    try {
      const DeviceGroup group(devices, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(message({0}, {}, ErrorKind::usage), HasSubstr("2 to 8 different devices"));
  EXPECT_THAT(message({0, 1, 0}, {}, ErrorKind::usage), HasSubstr("cuda:0,1,0"));
  EXPECT_THAT(message({0, n_devices_}, {}, ErrorKind::no_device), HasSubstr("there are"));
  if (const std::string why = gpu::why_no_nccl(); !why.empty()) {
    EXPECT_THAT(message({0, 1}, {.forced = {{"all_reduce", "nccl"}}}, ErrorKind::usage),
                AllOf(HasSubstr("all_reduce=nccl"), HasSubstr(why), HasSubstr("can: two-shot, one-shot")));
    EXPECT_EQ(group(2, {.most_floats = 1 << 24})->rank(0).all_reduce_kernel(1 << 24), "two-shot");
  }
  EXPECT_EQ(group(2)->rank(1).all_reduce_kernel(1000), "one-shot");
}

TEST_F(CollectiveCuda, NcclSumsAndGathers) {
  if (const std::string why = gpu::why_no_nccl(); !why.empty()) GTEST_SKIP() << why;
  constexpr int64_t kCount = 100'003;
  for (const int n : sizes()) {
    const auto group =
        this->group(n, {.forced = {{"all_reduce", "nccl"}, {"gather_columns", "nccl"}}, .most_floats = 1 << 20});
    on_ranks(*group, [&](DeviceRank& rank, const gpu::Stream& stream) {
      ASSERT_EQ(rank.all_reduce_kernel(1), "nccl");
      std::vector<float> own(kCount);
      for (int64_t i = 0; i < kCount; ++i) own[size_t(i)] = float(i % 1000 + rank.rank());
      const GuardedFloats values(stream, own);
      rank.all_reduce(stream, values.data(), kCount, true);
      rank.synchronize(stream);
      const gpu::Graph graph(stream, [&] { rank.all_reduce(stream, values.data(), kCount, true); });
      for (int replay = 0; replay < 3; ++replay) graph.launch(stream);
      rank.synchronize(stream);
      for (int64_t i = 0; i < kCount; ++i)
        own[size_t(i)] = float(n * n * n) * float(n * (i % 1000) + n * (n - 1) / 2);  // whole numbers: in any order
      EXPECT_EQ(values.down(stream), own);
      std::vector<int64_t> borders{0};
      for (int r = 0; r < n; ++r) borders.push_back(borders.back() + 10 + 7 * r);
      check_gather(*group, rank, stream, 3, borders);
    });
  }
}

TEST_F(CollectiveCuda, WithNcclTooARankThatDoesNotComeEndsTheWait) {
  if (const std::string why = gpu::why_no_nccl(); !why.empty()) GTEST_SKIP() << why;
  const auto group = this->group(2, {.forced = {{"all_reduce", "nccl"}}, .timeout_s = 1});
  const auto start = std::chrono::steady_clock::now();
  on_ranks(*group, [&](DeviceRank& rank, const gpu::Stream& stream) {
    const GuardedFloats values(stream, values_of(rank.rank(), 1000, 1));
    rank.all_reduce(stream, values.data(), 1000, true);  // the first one connects the ranks, which the host waits for
    rank.synchronize(stream);
    if (rank.rank() == 1) return;
    rank.all_reduce(stream, values.data(), 1000, true);
    EXPECT_THAT(failure_of([&] { rank.synchronize(stream); }), HasSubstr("within 1 s"));
  });
  EXPECT_LT(seconds_since(start), 60);
}

}  // namespace
}  // namespace ridge
