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

  /// Of the best copy.
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

  /// Of a call, by this rank's clock; from a common start. The values are zeroes, so that sums of sums stay what they
  /// are.
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
  const auto go_on = [&] { return ranks.from_first(hooks.stop && hooks.stop() ? "stop" : "") != "stop"; };
  const auto status = [&](const std::string& what, int done) {
    if (ranks.is_first() && hooks.on_status) hooks.on_status(what, done, int(sizes.size()) + 1);
  };
  CpuCollective bench(ranks, params);
  status("copies", 0);
  const double link_gb_s = bench.link_gb_s();
  int n_failed = 0, done = 1;
  for (const int64_t bytes : sizes) {
    if (!go_on()) break;
    status(bytes_text(double(bytes)), done++);
    CollectiveRow row{
        .kernel = "ranks", .n_ranks = ranks.size(), .bytes = bytes, .link_gb_s = link_gb_s, .date = utc_now()};
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

Row collective_fields(const CollectiveRow& row, const CollectiveBenchParams& params) {
  Row f{{"kind", "collective"},
        {"op", "all_reduce"},
        {"kernel", row.kernel},
        {"n_ranks", row.n_ranks},
        {"bytes", row.bytes}};
  f.update(spread_fields(row.us()));
  f["gb_s"] = number(row.gb_s());
  f["link_gb_s"] = number(row.link_gb_s);
  f["pct_of_link"] = number(row.pct_of_link());
  f.update(check_fields(row.check, row.after_replays));
  f.update(sample_fields(row.seconds, row.calls));
  if (params.devices.empty()) {
    f["device"] = "cpu";
    f["device_name"] = machine_info().cpu_model;
  } else {
    const gpu::DeviceReport report = gpu::query_devices();
    const int first = params.devices.front();
    f.update(device_fields(first, report.devices.at(size_t(first)), report.driver_version, report.runtime_version));
    f["device"] = fmt::format("cuda:{}", fmt::join(params.devices, ","));
    f["nccl"] = row.kernel == "nccl" ? Row(gpu::nccl_version()) : Row(nullptr);
  }
  f.update(provenance(1, params.seed));
  f["date"] = row.date;
  return f;
}

std::string collective_markdown_head() {
  return "| op | ranks | bytes | kernel | us | quartiles | GB/s | % of link | checked |\n"
         "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |";
}

std::string collective_markdown_line(const CollectiveRow& row) {
  const std::string front = fmt::format("| all_reduce | {} | {} | {} |", row.n_ranks, row.bytes, row.kernel);
  const std::string check = fmt::format("{} {:.0f}", row.check.metric, row.check.error);
  if (row.failed())
    return fmt::format("{} FAILED | | | | {}{} |", front, check, row.after_replays ? " after the replays" : "");
  const Spread us = row.us();
  return fmt::format("{} {:.2f} | {:.2f} - {:.2f} | {:.2f} | {:.1f} % | {} |", front, us.median, us.lower, us.upper,
                     row.gb_s(), row.pct_of_link(), check);
}

}  // namespace ridge::lab
