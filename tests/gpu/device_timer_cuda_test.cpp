// The timer queues what it should, and the ceilings' kernels are right before they are timed.
#include "lab/op/device_timer.h"

#include <numeric>

#include "gpu/device_data.h"
#include "lab/op/device_ceilings.h"
#include "op/rate/rate_cuda.h"
#include "op/stream/stream_cuda.h"

namespace ridge::lab {
namespace {

const TimerOptions kQuick{.replays = 3, .min_replay_seconds = 1e-6, .max_calls = 64, .max_seconds = 5};

class DeviceTimer : public OnDevice {};

TEST_F(DeviceTimer, CallsTakeTurnsOverTheSetsAndEveryReplayIsTimed) {
  std::vector<int> queued;
  const DeviceWork works[] = {{3,
                               [&](gpu::StreamHandle s, int set) {
                                 queued.push_back(set);
                                 device_nothing(s, false);
                               }},
                              {1, [](gpu::StreamHandle s, int) { device_nothing(s, true); }}};
  const auto times = time_on_device(stream(), works, kQuick);
  ASSERT_EQ(times.size(), 2u);
  for (const CallTimes& t : times) {
    EXPECT_EQ(t.seconds.size(), 3u);
    for (const double seconds : t.seconds) EXPECT_GT(seconds, 0);
  }
  EXPECT_EQ(times[0].calls % 3, 0);
  ASSERT_GE(queued.size(), 4u);  // one call outside of a graph, then turns
  for (size_t i = 1; i < queued.size(); ++i) EXPECT_EQ(queued[i], int(i - 1) % 3);
}

TEST_F(DeviceTimer, WorkRunsAsOftenAsItIsReplayed) {
  // Calls add to words of two sets; how often follows from the calls of a replay: once plain, a turn's graph twice, the
  // larger graph (if there is one) once, one launch ahead of the first event, and the replays.
  const gpu::Buffer words = up(std::vector<uint32_t>(2 * kDeviceReadSums, 0)), data(kDeviceStreamUnit);
  device_write(stream(), data.as<void>(), kDeviceStreamUnit);
  const DeviceWork work{2, [&](gpu::StreamHandle s, int set) {
                          device_read(s, 0, data.as<void>(), kDeviceStreamUnit,
                                      words.as<uint32_t>() + set * kDeviceReadSums);
                        }};
  const auto times = time_on_device(stream(), {&work, 1}, kQuick);
  const auto found = down(words.as<uint32_t>(), 2 * kDeviceReadSums);
  const auto sum_of = [&](int set) {
    return std::accumulate(found.begin() + set * kDeviceReadSums, found.begin() + (set + 1) * kDeviceReadSums, 0u);
  };
  const unsigned once = device_written_sum(kDeviceStreamUnit), of_set = unsigned(times[0].calls) / 2,
                 larger = of_set > 1 ? of_set : 0;
  EXPECT_EQ(sum_of(1), once * (2 + larger + 4 * of_set));
  EXPECT_EQ(sum_of(0), once * (1 + 2 + larger + 4 * of_set));
}

TEST_F(DeviceTimer, StopsBetweenRoundsAndLimitsItsTime) {
  const DeviceWork work{1, [](gpu::StreamHandle s, int) { device_nothing(s, false); }};
  TimerOptions options = kQuick;
  options.stop = [] { return true; };
  EXPECT_TRUE(time_on_device(stream(), {&work, 1}, options)[0].seconds.empty());
  options.stop = nullptr;
  options.replays = 1000;
  options.max_seconds = 1e-9;
  EXPECT_EQ(time_on_device(stream(), {&work, 1}, options)[0].seconds.size(), size_t(kFewestReplays));
}

TEST_F(DeviceTimer, ACallThatThrowsLeavesTheStreamUsable) {
  int calls = 0;
  const DeviceWork work{1, [&](gpu::StreamHandle s, int) {
                          if (++calls == 2) throw Error(ErrorKind::failure, "planted");  // inside the capture
                          device_nothing(s, false);
                        }};
  EXPECT_THROW(time_on_device(stream(), {&work, 1}, kQuick), Error);
  EXPECT_EQ(time_on_device(stream(), {&work, 1}, kQuick)[0].seconds.size(), 3u);
}

TEST_F(DeviceTimer, RoundTripsAreTimed) {
  const DeviceWork work{1, [](gpu::StreamHandle s, int) { device_nothing(s, false); }};
  const auto seconds = time_round_trips(stream(), work, 4);
  ASSERT_EQ(seconds.size(), 4u);
  for (const double s : seconds) EXPECT_GT(s, 0);
}

class DeviceStream : public OnDevice {};

TEST_F(DeviceStream, EveryReaderSumsAllWordsAndCopiesAndTriadsAreWhole) {
  // One part, some, and more blocks than a small device starts at once; the bytes around the copy stay.
  for (const int units : {1, 3, 9}) {
    const int64_t bytes = units * kDeviceStreamUnit, n = bytes / 4;
    const gpu::Buffer data = up(std::vector<uint32_t>(size_t(n) + 4, 0xA5A5A5A5u));
    device_write(stream(), data.as<void>(), bytes);
    const auto words = down(data.as<uint32_t>(), n + 4);
    for (const int64_t i : {int64_t(0), int64_t(1), n / 2, n - 1})
      ASSERT_EQ(words[size_t(i)], uint32_t(i) * 0x9E3779B9u);
    EXPECT_EQ(words[size_t(n)], 0xA5A5A5A5u) << "wrote past the end";
    EXPECT_EQ(std::accumulate(words.begin(), words.begin() + n, 0u), device_written_sum(bytes));
    for (int variant = 0; variant < int(device_read_variants().size()); ++variant) {
      const gpu::Buffer sums = up(std::vector<uint32_t>(kDeviceReadSums, 0));
      device_read(stream(), variant, data.as<void>(), bytes, sums.as<uint32_t>());
      const auto parts = down(sums.as<uint32_t>(), kDeviceReadSums);
      EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), 0u), device_written_sum(bytes))
          << device_read_variants()[size_t(variant)] << ", " << units;
    }
    const gpu::Buffer copy = up(std::vector<uint32_t>(size_t(n) + 4, 0xA5A5A5A5u));
    device_copy(stream(), copy.as<void>(), data.as<void>(), bytes);
    EXPECT_EQ(down(copy.as<uint32_t>(), n + 4), words);
    std::vector<uint32_t> tripled(words.begin(), words.begin() + n), sums(words);
    for (size_t i = 0; i < tripled.size(); ++i) {
      tripled[i] = uint32_t(i) ^ 0x5A5A5A5Au;
      sums[i] += 3 * tripled[i];
    }
    device_triad(stream(), copy.as<void>(), data.as<void>(), up(tripled).as<void>(), bytes);
    EXPECT_EQ(down(copy.as<uint32_t>(), n + 4), sums);
  }
}

TEST_F(DeviceStream, RatesDoAllTheMultiplyAddsTheySay) {
  const gpu::Buffer sums(4 * kDeviceRateSums);
  for (int variant = 0; variant < int(device_rates().size()); ++variant)
    for (const int rounds : {0, 1, 5}) {
      gpu::clear(stream(), sums.as<void>(), sums.bytes());
      device_rate(stream(), variant, rounds, sums.as<uint32_t>());
      const auto parts = down(sums.as<uint32_t>(), kDeviceRateSums);
      EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), 0u), device_rate_sum(variant, rounds))
          << device_rates()[size_t(variant)].name << ", " << rounds;
    }
  EXPECT_EQ(device_rate_ops(1, 2), 2 * device_rate_ops(1, 1));
  EXPECT_THROW(device_rate(stream(), 0, kMostDeviceRateRounds + 1, sums.as<uint32_t>()), Error);
  EXPECT_THROW(device_rate(stream(), 99, 1, sums.as<uint32_t>()), Error);
}

TEST_F(DeviceStream, RefusesSizesItWouldNotCover) {
  const gpu::Buffer data(2 * kDeviceStreamUnit);
  EXPECT_THROW(device_write(stream(), data.as<void>(), kDeviceStreamUnit + 16), Error);
  EXPECT_THROW(device_write(stream(), data.as<void>(), 0), Error);
  EXPECT_THROW(device_write(stream(), data.as<float>() + 1, kDeviceStreamUnit), Error);
}

TEST_F(DeviceStream, CeilingsHaveEveryStreamAndEdge) {
  const DeviceCeilings ceilings = measure_device_ceilings(
      {.device = 0, .bytes = kDeviceStreamUnit, .replays = 2, .max_seconds = 2, .rate_rounds = 3});
  EXPECT_EQ(ceilings.streams.size(), device_read_variants().size() + 4);  // write, copy, triad, copy by the driver
  for (const StreamResult& s : ceilings.streams) EXPECT_GT(s.gb_s.median, 0) << s.name;
  EXPECT_EQ(ceilings.edges.size(), 4u);
  ASSERT_EQ(ceilings.caches.size(), 1u);
  EXPECT_GT(ceilings.caches[0].stream.gb_s.median, 0);
  ASSERT_EQ(ceilings.rates.size(), device_rates().size());
  for (const RateResult& rate : ceilings.rates)
    EXPECT_GT(rate.ridge_op_per_byte(ceilings.read_gb_s()), 0) << rate.kernel;
  const Row row = device_ceiling_columns().fields(ceilings);
  EXPECT_EQ(row["rates"].size(), ceilings.rates.size());
  EXPECT_EQ(row["caches"].size(), 1u);
  for (const EdgeResult& e : ceilings.edges) EXPECT_GT(e.us.median, 0) << e.name;
  EXPECT_GT(ceilings.read_gb_s(), 0);
  EXPECT_EQ(measure_device_ceilings({.bytes = kDeviceStreamUnit, .replays = 2, .read_only = true}).streams.size(),
            device_read_variants().size());
}

}  // namespace
}  // namespace ridge::lab
