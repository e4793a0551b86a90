#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "lab/op/device_ceilings.h"
#include "lab/op/device_timer.h"
#include "op/rate/rate_cuda.h"
#include "op/stream/stream_cuda.h"

namespace ridge::lab {
namespace {

/// Rates of calls that move `bytes_moved` each.
StreamResult stream_result(std::string name, int64_t bytes_moved, const CallTimes& times) {
  std::vector<double> gb_s;
  for (const double seconds : times.seconds)
    gb_s.push_back(seconds > 0 ? double(bytes_moved) / seconds / 1e9 : std::numeric_limits<double>::quiet_NaN());
  return {std::move(name), bytes_moved, spread(std::move(gb_s)), int(times.seconds.size())};
}

std::vector<CallTimes> time_works(const gpu::Stream& stream, std::span<const DeviceWork> works,
                                  const DeviceCeilingOptions& options, int max_calls) {
  return time_on_device(stream, works,
                        {.replays = options.replays,
                         .min_replay_seconds = 2e-3,
                         .max_calls = max_calls,
                         .max_seconds = options.max_seconds,
                         .stop = options.stop});
}

/// Sums a kernel's n partial sums.
uint32_t total_of(const gpu::Stream& stream, const gpu::Buffer& sums, int n) {
  std::vector<uint32_t> parts(static_cast<size_t>(n));
  gpu::download(stream, parts.data(), sums.as<void>(), 4 * int64_t(n));
  stream.synchronize();
  return std::accumulate(parts.begin(), parts.end(), uint32_t(0));
}

EdgeResult edge_result(std::string name, std::string what, std::vector<double> seconds) {
  for (double& s : seconds) s *= 1e6;
  const int repeats = int(seconds.size());
  return {std::move(name), std::move(what), spread(std::move(seconds)), repeats};
}

/// The buffers, and the kernels on them.
class DeviceStreams {
 public:
  DeviceStreams(const gpu::Stream& stream, int64_t bytes, bool read_only)
      : stream_(stream),
        bytes_(bytes),
        a_(bytes),
        b_(read_only ? 0 : bytes),
        c_(read_only ? 0 : bytes),
        sums_(4 * kDeviceReadSums) {
    device_write(stream, a_.as<void>(), bytes);
  }

  void read(gpu::StreamHandle stream, int variant) const {
    device_read(stream, variant, a_.as<void>(), bytes_, sums_.as<uint32_t>());
  }
  void write(gpu::StreamHandle stream) const { device_write(stream, a_.as<void>(), bytes_); }
  void copy(gpu::StreamHandle stream) const { device_copy(stream, b_.as<void>(), a_.as<void>(), bytes_); }
  /// Behind copy(): every word is then four times that of a_.
  void triad(gpu::StreamHandle stream) const {
    device_triad(stream, c_.as<void>(), a_.as<void>(), b_.as<void>(), bytes_);
  }
  void copy_by_driver(gpu::StreamHandle stream) const { gpu::copy(stream, b_.as<void>(), a_.as<void>(), bytes_); }

  /// Throws Error(gate) unless `variant` finds in a_ what device_write() puts there.
  void check_read(const std::string& name, int variant) const { check_sum(name, variant, a_, 1); }
  /// Throws Error(gate) unless the words that copy() and triad() leave have the right sums.
  void check_copies() const {
    check_sum("copy", 0, b_, 1);
    check_sum("triad", 0, c_, 4);
  }

 private:
  void check_sum(const std::string& name, int variant, const gpu::Buffer& data, uint32_t times) const {
    gpu::clear(stream_, sums_.as<void>(), sums_.bytes());
    device_read(stream_, variant, data.as<void>(), bytes_, sums_.as<uint32_t>());
    const uint32_t sum = total_of(stream_, sums_, kDeviceReadSums), right = times * device_written_sum(bytes_);
    if (sum != right)
      throw_error(ErrorKind::gate, "stream {}: sum {:#x}, expected {:#x}: no bandwidth is given", name, sum, right);
  }

  const gpu::Stream& stream_;
  int64_t bytes_;
  gpu::Buffer a_, b_, c_, sums_;
};

void measure_streams(const gpu::Stream& stream, const DeviceCeilingOptions& options, DeviceCeilings& result) {
  const int64_t n = result.size.bytes;
  const DeviceStreams streams(stream, n, options.read_only);
  std::vector<std::string> names;
  std::vector<int64_t> bytes;
  std::vector<DeviceWork> works;
  const auto add = [&](std::string name, int64_t bytes_moved, std::function<void(gpu::StreamHandle)> call) {
    names.push_back(std::move(name));
    bytes.push_back(bytes_moved);
    works.push_back({1, [call = std::move(call)](gpu::StreamHandle s, int) { call(s); }});
  };
  for (int variant = 0; variant < int(device_read_variants().size()); ++variant) {
    names.push_back(fmt::format("read {}", device_read_variants()[size_t(variant)]));
    streams.check_read(names.back(), variant);
    bytes.push_back(n);
    works.push_back({1, [&streams, variant](gpu::StreamHandle s, int) { streams.read(s, variant); }});
  }
  if (!options.read_only) {
    streams.copy(stream);
    streams.triad(stream);
    streams.check_copies();
    add("write", n, [&](gpu::StreamHandle s) { streams.write(s); });
    add("copy", 2 * n, [&](gpu::StreamHandle s) { streams.copy(s); });
    add("triad", 3 * n, [&](gpu::StreamHandle s) { streams.triad(s); });
    add("copy-driver", 2 * n, [&](gpu::StreamHandle s) { streams.copy_by_driver(s); });
  }
  const auto times = time_works(stream, works, options, 64);
  for (size_t i = 0; i < works.size(); ++i)
    if (!times[i].seconds.empty()) result.streams.push_back(stream_result(names[i], bytes[i], times[i]));
}

/// A quarter of L2, read by every kernel over and over.
void measure_l2(const gpu::Stream& stream, const DeviceCeilingOptions& options, DeviceCeilings& result) {
  const int64_t bytes =
      std::max(kDeviceStreamUnit, int64_t(result.device.l2_bytes) / 4 / kDeviceStreamUnit * kDeviceStreamUnit);
  const DeviceStreams streams(stream, bytes, true);
  std::vector<DeviceWork> works;
  std::vector<std::string> names;
  for (int variant = 0; variant < int(device_read_variants().size()); ++variant) {
    names.push_back(fmt::format("l2-read {}", device_read_variants()[size_t(variant)]));
    streams.check_read(names.back(), variant);
    works.push_back({1, [&streams, variant](gpu::StreamHandle s, int) { streams.read(s, variant); }});
  }
  const auto times = time_works(stream, works, options, 1024);
  std::optional<StreamResult> best;
  for (size_t i = 0; i < works.size(); ++i) {
    if (times[i].seconds.empty()) continue;
    StreamResult found = stream_result(names[i], bytes, times[i]);
    if (!best || found.gb_s.median > best->gb_s.median) best = std::move(found);
  }
  if (best) result.caches.push_back({2, bytes, std::move(*best)});
}

void measure_rates(const gpu::Stream& stream, const DeviceCeilingOptions& options, DeviceCeilings& result) {
  const gpu::Buffer sums(4 * kDeviceRateSums);
  std::vector<DeviceWork> works;
  for (int variant = 0; variant < int(device_rates().size()); ++variant) {
    gpu::clear(stream, sums.as<void>(), sums.bytes());
    device_rate(stream, variant, options.rate_rounds, sums.as<uint32_t>());
    const uint32_t sum = total_of(stream, sums, kDeviceRateSums);
    const uint32_t right = device_rate_sum(variant, options.rate_rounds);
    if (sum != right)
      throw_error(ErrorKind::gate, "rate {}: sum {:#x}, expected {:#x}: no rate is given",
                  device_rates()[size_t(variant)].name, sum, right);
    works.push_back({1, [&, variant](gpu::StreamHandle s, int) {
                       device_rate(s, variant, options.rate_rounds, sums.as<uint32_t>());
                     }});
  }
  const auto times = time_works(stream, works, options, 64);
  for (size_t i = 0; i < works.size(); ++i) {
    if (times[i].seconds.empty()) continue;
    // Operations take the bytes' place: 10^9 a second either way.
    const StreamResult measured = stream_result("", device_rate_ops(int(i), options.rate_rounds), times[i]);
    result.rates.push_back({.number = std::string(device_rates()[i].number),
                            .kernel = std::string(device_rates()[i].name),
                            .gop_s = measured.gb_s,
                            .repeats = measured.repeats});
  }
}

void measure_edges(const gpu::Stream& stream, const DeviceCeilingOptions& options, DeviceCeilings& result) {
  constexpr int kChain = 512;
  const auto nothing = [](bool overlap) {
    return DeviceWork{1, [overlap](gpu::StreamHandle s, int) { device_nothing(s, overlap); }};
  };
  TimerOptions timer{.replays = std::max(options.replays, 20),
                     .min_replay_seconds = 1,  // as many calls as max_calls allows
                     .max_calls = kChain,
                     .max_seconds = 1,
                     .stop = options.stop};
  const DeviceWork chains[] = {nothing(false), nothing(true)};
  const auto of_chains = time_on_device(stream, chains, timer);
  timer.max_calls = 1;
  const auto of_one = time_on_device(stream, {chains, 1}, timer);
  const std::string chain = fmt::format("one of {} empty kernels in a graph", kChain);
  result.edges.push_back(edge_result("graph-edge", chain, of_chains[0].seconds));
  result.edges.push_back(
      edge_result("graph-edge-overlap", chain + ", programmatic dependent launch", of_chains[1].seconds));
  result.edges.push_back(
      edge_result("graph-launch", "graphs of one empty kernel, one after another", of_one[0].seconds));
  result.edges.push_back(edge_result("graph-round-trip", "host time from a graph's launch until its end is known",
                                     time_round_trips(stream, chains[0], timer.replays)));
}

}  // namespace

DeviceCeilings measure_device_ceilings(const DeviceCeilingOptions& options) {
  const gpu::DeviceReport report = gpu::query_devices();
  gpu::use_device(options.device);
  DeviceCeilings result;
  result.index = options.device;
  result.device = report.devices.at(size_t(options.device));
  result.driver_version = report.driver_version;
  result.runtime_version = report.runtime_version;
  result.size =
      options.bytes > 0
          ? StreamSize{std::max(kDeviceStreamUnit, options.bytes / kDeviceStreamUnit * kDeviceStreamUnit), "as asked"}
          : choose_device_stream_size(int64_t(result.device.l2_bytes), gpu::free_bytes());
  const gpu::Stream stream;
  measure_streams(stream, options, result);
  if (options.read_only && options.rates) measure_rates(stream, options, result);
  for (const auto measure : {measure_l2, measure_rates, measure_edges})
    if (!options.read_only && !(options.stop && options.stop())) measure(stream, options, result);
  return result;
}

}  // namespace ridge::lab
