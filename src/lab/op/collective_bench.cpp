#include "lab/op/collective_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "gpu/nccl.h"
#include "lab/op/device_ceilings.h"
#include "lab/op/device_timer.h"
#include "lab/rows/machine.h"

namespace ridge::lab {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kCpuCopyBytes = int64_t(32) << 20;
constexpr int kCopies = 7;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The CPU's ranks.
class CpuCollective {
 public:
  CpuCollective(Ranks& ranks, const CollectiveBenchParams& params) : ranks_(ranks), params_(params) {}

  /// Bandwidth of the best copy.
  double link_gb_s() {
    const int64_t bytes = params_.roof_bytes > 0 ? params_.roof_bytes : kCpuCopyBytes;
    std::vector<std::byte> buffer(size_t(bytes), std::byte{1});
    double best = 0;
    for (int i = 0; i < kCopies; ++i) {
      ranks_.barrier();
      const Clock::time_point start = Clock::now();
      ranks_.send(0, 1, buffer, buffer);
      ranks_.barrier();  // the second rank has it
      best = std::max(best, double(bytes) / seconds_since(start) / 1e9);
    }
    return best;
  }

  OpCheck check(int64_t n) {
    values_.resize(size_t(n));
    for (int64_t i = 0; i < n; ++i) values_[size_t(i)] = collective_value(ranks_.rank(), i, params_.seed);
    ranks_.all_reduce(values_);
    OpCheck worst = check_collective(values_, ranks_.size(), params_.seed);
    for (const std::string& errors : ranks_.gather(fmt::format("{}", int64_t(worst.error))))
      worst.error = std::max(worst.error, double(std::stoll(errors)));
    return worst;
  }

  /// Time of a call, by this rank's clock, from a common start. The values are zeroes, so that sums of sums stay zero.
  double sample(int calls) {
    ranks_.barrier();
    const Clock::time_point start = Clock::now();
    for (int call = 0; call < calls; ++call) ranks_.all_reduce(values_);
    return seconds_since(start) / calls;
  }

  void time(CollectiveRow& row) {
    std::ranges::fill(values_, 0.0f);
    sample(2);
    const CollectiveTurns own = collective_turns(sample(4), 1, params_);
    const std::string turns = ranks_.from_first(fmt::format("{} {}", own.calls, own.samples));  // its clock decides
    row.calls = std::stoi(turns);
    const int samples = std::stoi(turns.substr(turns.find(' ')));
    for (int i = 0; i < samples; ++i) row.seconds.push_back(sample(row.calls));
  }

 private:
  Ranks& ranks_;
  const CollectiveBenchParams& params_;
  std::vector<float> values_;
};

}  // namespace

double CollectiveRow::gb_s() const {
  return 2.0 * (n_ranks - 1) / n_ranks * double(bytes) / us().median * 1e-3;  // bytes a microsecond are MB/s
}
double CollectiveRow::pct_of_link() const { return link_gb_s > 0 ? 100 * gb_s() / link_gb_s : NAN; }

std::vector<int64_t> collective_sizes(const CollectiveBenchParams& params) {
  std::vector<int64_t> sizes = params.bytes;
  if (sizes.empty())
    for (int64_t bytes = 4 << 10; bytes <= 8 << 20; bytes *= 2) sizes.push_back(bytes);
  for (const int64_t bytes : sizes)
    if (bytes <= 0 || bytes % 4 != 0) throw_wrong_field("bytes", "--bytes: {} bytes are not of whole floats", bytes);
  return sizes;
}

float collective_value(int rank, int64_t i, uint64_t seed) {
  return float((uint64_t(i) * 7 + uint64_t(rank) * 113 + seed) % 1021);
}

OpCheck check_collective(std::span<const float> sums, int n_ranks, uint64_t seed) {
  OpCheck check{.metric = "wrong sums", .what = "every sum of every rank"};
  for (size_t i = 0; i < sums.size(); ++i) {
    float expected = 0;
    for (int r = 0; r < n_ranks; ++r) expected += collective_value(r, int64_t(i), seed);
    check.error += sums[i] != expected;
  }
  return check;
}

CollectiveRow collective_row(std::string kernel, int n_ranks, int64_t bytes, double link_gb_s,
                             const CollectiveBenchParams& params) {
  CollectiveRow row;
  row.kernel = std::move(kernel);
  row.n_ranks = n_ranks;
  row.bytes = bytes;
  row.link_gb_s = link_gb_s;
  row.devices = params.devices;
  row.seed = params.seed;
  row.date = utc_now();
  return row;
}

CollectiveTurns collective_turns(double seconds, int n_kernels, const CollectiveBenchParams& params) {
  constexpr double kSeconds = 2e-3;
  constexpr int kMostCalls = 1024;
  const double call = std::max(seconds, 1e-7);
  CollectiveTurns turns;
  turns.calls = int(std::clamp(std::ceil(kSeconds / call), 1.0, double(kMostCalls)));
  const double most = params.max_seconds / (turns.calls * call * n_kernels);
  turns.samples = int(std::clamp(most, double(std::min(kFewestReplays, params.replays)), double(params.replays)));
  return turns;
}

int run_collective_bench_on_cpu(Ranks& ranks, const CollectiveBenchParams& params, const CollectiveHooks& hooks) {
  const std::vector<int64_t> sizes = collective_sizes(params);
  const auto go_on = [&] { return ranks.from_first(hooks.stop() ? "stop" : "") != "stop"; };
  const auto status = [&](const std::string& what, int done) {
    if (ranks.is_first()) hooks.on_status(what, done, int(sizes.size()) + 1);
  };
  CpuCollective bench(ranks, params);
  status("copies", 0);
  const double link_gb_s = bench.link_gb_s();
  int n_failed = 0, done = 1;
  for (const int64_t bytes : sizes) {
    if (!go_on()) break;
    status(bytes_text(double(bytes)), done++);
    CollectiveRow row = collective_row("ranks", ranks.size(), bytes, link_gb_s, params);
    row.check = bench.check(bytes / 4);
    if (!row.failed()) bench.time(row);
    if (!row.failed())
      if (OpCheck after = bench.check(bytes / 4); !after.passed()) {
        row.check = std::move(after);
        row.after_replays = true;
        row.seconds.clear();
      }
    n_failed += row.failed();
    if (ranks.is_first() && hooks.on_row) hooks.on_row(row);
  }
  return n_failed;
}

namespace {

std::optional<GpuPlace> first_gpu(const CollectiveRow& row) {
  if (row.devices.empty()) return std::nullopt;
  const gpu::DeviceReport report = gpu::query_devices();
  return GpuPlace{report.devices.at(size_t(row.devices.front())), report.driver_version, report.runtime_version};
}

std::string device_text(const CollectiveRow& row) {
  return row.devices.empty() ? "cpu" : fmt::format("cuda:{}", fmt::join(row.devices, ","));
}

std::string device_name(const CollectiveRow& row) {
  return row.devices.empty() ? machine_info().cpu_model : first_gpu(row)->device.name;
}

Provenance collective_provenance(const CollectiveRow& row) { return {1, row.seed, row.date}; }

std::string checked_text(const CollectiveRow& row) {
  const char* const when = row.failed() && row.after_replays ? " after the replays" : "";
  return fmt::format("{} {:.0f}{}", row.check.metric, row.check.error, when);
}

}  // namespace

Columns<CollectiveRow> collective_columns() {
  return {
      {"kind", "-", "collective", [](auto&) { return "collective"; }},
      {"op", "-", "sum over ranks", [](auto&) { return "all_reduce"; }, "op"},
      {"n_ranks", "ranks", "that add", &CollectiveRow::n_ranks, ">ranks"},
      {"bytes", "bytes", "of a rank", &CollectiveRow::bytes, ">bytes"},
      {"kernel", "-", "way of adding", &CollectiveRow::kernel, "kernel"},
      {"", "us", "median", [](auto& r) { return r.failed() ? Row("FAILED") : Row(r.us().median); }, ">us", "{:.2f}"},
      {"", "us", "quartiles", [](auto& r) { return when(!r.failed(), r.us().quartiles(2)); }, ">quartiles"},
      {"gb_s", "GB/s", "least that a rank must send, in that time", &CollectiveRow::gb_s, ">GB/s", "{:.2f}"},
      {"link_gb_s", "GB/s", "of large copies to another rank in the same run", &CollectiveRow::link_gb_s},
      {"pct_of_link", "%", "share of that rate", &CollectiveRow::pct_of_link, ">% of link", "{:.1f} %"},
      {"", "-", "sums of all ranks", &checked_text, ">checked"},
      part_of<CollectiveRow>(timed_columns(), [](auto& r) -> const Timed& { return r; }),
      {"device", "-", "cpu or cuda:N,M", &device_text},
      {"device_name", "-", "processor, or the first GPU", &device_name},
      part_of<CollectiveRow>(gpu_columns(), first_gpu),
      {"nccl", "-", "version of NCCL",
       [](auto& r) { return only(!r.devices.empty(), when(r.kernel == "nccl", gpu::nccl_version())); }},
      part_of<CollectiveRow>(provenance_columns(), collective_provenance),
  };
}

}  // namespace ridge::lab
