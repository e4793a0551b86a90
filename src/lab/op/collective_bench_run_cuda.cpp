// The collective bench on GPUs.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "gpu/graph.h"
#include "gpu/peer.h"
#include "lab/op/collective_bench.h"
#include "op/collective/collective_cuda.h"

namespace ridge::lab {
namespace {

constexpr int64_t kCopyBytes = int64_t(256) << 20;
constexpr int kCopies = 12;

/// Threads that go on together, or end together.
class Meeting {
 public:
  explicit Meeting(int n_threads) : n_threads_(n_threads) {}
  /// Returns when all threads have come; throws when one of them failed.
  void wait() {
    std::unique_lock lock(mutex_);
    const int64_t turn = turn_;
    if (++n_here_ == n_threads_) {
      n_here_ = 0;
      ++turn_;
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return turn_ != turn || failure_; });
    if (failure_) throw_error(ErrorKind::failure, "another rank failed");
  }
  void fail(std::exception_ptr failure) {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
    all_here_.notify_all();
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  const int n_threads_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  int n_here_ = 0;
  int64_t turn_ = 0;
  std::exception_ptr failure_;
};

/// A kernel with ranks of its own; `name` is empty for what a model takes.
struct Candidate {
  std::string name;
  std::unique_ptr<DeviceGroup> group;
};

std::vector<Candidate> open_candidates(const CollectiveBenchParams& params, int64_t most_floats,
                                       const CollectiveHooks& hooks) {
  const bool all = params.kernels == std::vector<std::string>{"all"};
  std::vector<std::string> names = params.kernels;
  if (names.empty()) names = {""};
  if (all) {
    names.clear();
    for (const CollectiveVariant& row : all_reduce_variants(1, 2)) names.emplace_back(row.name);
  }
  std::vector<Candidate> candidates;
  for (const std::string& name : names) {
    if (!name.empty() && !find_row(all_reduce_variants(1, 2), name))
      throw_wrong_field("kernels", "all_reduce has no kernel '{}' (there are: {})", name,
                        row_names(all_reduce_variants(1, 2)));
    DeviceGroupOptions options{.timeout_s = params.rank_timeout_s, .most_floats = most_floats};
    if (!name.empty()) options.forced["all_reduce"] = name;
    try {
      candidates.push_back({name, std::make_unique<DeviceGroup>(params.devices, options)});
    } catch (const Error& error) {
      if (!all || error.kind() != ErrorKind::usage) throw;
      if (hooks.on_skipped) hooks.on_skipped(name, error.what());
    }
  }
  return candidates;
}

/// State that the threads of the ranks share.
struct Bench {
  const CollectiveBenchParams& params;
  const CollectiveHooks& hooks;
  const std::vector<int64_t> sizes;
  std::vector<Candidate> candidates;
  Meeting meeting;
  // The first rank's decisions; others read them behind a meeting.
  bool stopped = false;
  std::vector<CollectiveTurns> turns;
  int samples = 0;
  std::vector<CollectiveRow> rows;  // of a size
  int n_failed = 0;
  std::mutex mutex;  // of rows[].check
};

/// One rank's thread.
class Rank {
 public:
  Rank(Bench& bench, int rank) : bench_(bench), rank_(rank), values_(*std::ranges::max_element(bench.sizes)) {}

  void run() {
    const double link_gb_s = is_first() ? measure_link() : 0;
    bench_.meeting.wait();
    for (size_t i = 0; i < bench_.sizes.size(); ++i) {
      const int64_t bytes = bench_.sizes[i];
      if (is_first()) begin_size(bytes, int(i) + 1, link_gb_s);
      bench_.meeting.wait();
      if (bench_.stopped) return;
      check(bytes / 4, false);
      time(bytes / 4);
      check(bytes / 4, true);
      if (is_first())
        for (const CollectiveRow& row : bench_.rows) {
          bench_.n_failed += row.failed();
          if (bench_.hooks.on_row) bench_.hooks.on_row(row);
        }
    }
  }

 private:
  bool is_first() const { return rank_ == 0; }
  DeviceRank& of(size_t candidate) const { return bench_.candidates[candidate].group->rank(rank_); }

  /// Bandwidth of the best large copy to the second rank.
  double measure_link() {
    const int64_t bytes = bench_.params.roof_bytes > 0 ? bench_.params.roof_bytes : kCopyBytes;
    const gpu::Buffer from(bytes);
    gpu::Buffer to;
    {
      const gpu::OnDeviceScope scope(bench_.params.devices[1]);
      to = gpu::Buffer(bytes);
    }
    double best_us = 0;
    for (int i = 0; i < kCopies; ++i) {
      const gpu::Event begin, end;
      begin.record(stream_);
      gpu::copy(stream_, to.as<void>(), from.as<void>(), bytes);
      end.record(stream_);
      stream_.synchronize();
      const double us = end.microseconds_since(begin);
      best_us = i == 0 ? us : std::min(best_us, us);
    }
    return best_us > 0 ? double(bytes) / best_us * 1e-3 : 0;
  }

  void begin_size(int64_t bytes, int done, double link_gb_s) {
    bench_.stopped = bench_.hooks.stop();
    bench_.hooks.on_status(bytes_text(double(bytes)), done, int(bench_.sizes.size()) + 1);
    bench_.rows.clear();
    for (size_t c = 0; c < bench_.candidates.size(); ++c)
      bench_.rows.push_back(collective_row(std::string(of(c).all_reduce_kernel(bytes / 4)), of(c).size(), bytes,
                                           link_gb_s, bench_.params));
  }

  /// Holds a fresh sum of each kernel against what it must be.
  void check(int64_t n, bool after) {
    std::vector<float> own(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) own[size_t(i)] = collective_value(rank_, i, bench_.params.seed);
    for (size_t c = 0; c < bench_.candidates.size(); ++c) {
      gpu::upload(stream_, values_.as<void>(), own.data(), 4 * n);
      of(c).all_reduce(stream_, values_.as<float>(), n, false);
      std::vector<float> sums(static_cast<size_t>(n));
      gpu::download(stream_, sums.data(), values_.as<float>(), 4 * n);
      of(c).synchronize(stream_);
      OpCheck check = check_collective(sums, of(c).size(), bench_.params.seed);
      const std::scoped_lock lock(bench_.mutex);
      CollectiveRow& row = bench_.rows[c];
      if (row.failed()) continue;
      if (!check.passed()) {
        row.check = std::move(check);
        row.after_replays = after;
        row.seconds.clear();
      } else if (row.check.metric.empty()) {
        row.check = std::move(check);
      }
    }
    bench_.meeting.wait();
  }

  gpu::Graph calls_of(size_t candidate, int64_t n, int calls) {
    return gpu::Graph(stream_, [&] {
      for (int call = 0; call < calls; ++call) of(candidate).all_reduce(stream_, values_.as<float>(), n, false);
    });
  }

  /// One replay, seconds.
  double seconds_of(size_t candidate, const gpu::Graph& graph) {
    const gpu::Event begin, end;
    begin.record(stream_);
    graph.launch(stream_);
    end.record(stream_);
    of(candidate).synchronize(stream_);
    return end.microseconds_since(begin) * 1e-6;
  }

  void time(int64_t n) {
    constexpr int kFirstCalls = 8;
    gpu::clear(stream_, values_.as<void>(), 4 * n);  // sums of sums stay what they are
    std::vector<size_t> timed;
    for (size_t c = 0; c < bench_.rows.size(); ++c)
      if (!bench_.rows[c].failed()) timed.push_back(c);
    std::vector<double> about;
    for (const size_t c : timed) {
      const gpu::Graph graph = calls_of(c, n, kFirstCalls);
      seconds_of(c, graph);
      about.push_back(seconds_of(c, graph) / kFirstCalls);
    }
    if (is_first()) {
      bench_.turns.clear();
      bench_.samples = bench_.params.replays;
      for (const double seconds : about) {
        bench_.turns.push_back(collective_turns(seconds, int(timed.size()), bench_.params));
        bench_.samples = std::min(bench_.samples, bench_.turns.back().samples);
      }
    }
    bench_.meeting.wait();
    std::vector<gpu::Graph> graphs;
    for (size_t t = 0; t < timed.size(); ++t) {
      graphs.push_back(calls_of(timed[t], n, bench_.turns[t].calls));
      seconds_of(timed[t], graphs.back());
    }
    std::vector<gpu::Event> events(1);
    if (!graphs.empty()) graphs.back().launch(stream_);  // the devices are at work when the first event comes
    events.back().record(stream_);
    for (int sample = 0; sample < bench_.samples; ++sample)
      for (const gpu::Graph& graph : graphs) {
        graph.launch(stream_);
        events.emplace_back();
        events.back().record(stream_);
      }
    for (const size_t c : timed) of(c).synchronize(stream_);
    for (size_t i = 0; i + 1 < events.size() && is_first(); ++i) {
      const size_t t = i % timed.size();
      CollectiveRow& row = bench_.rows[timed[t]];
      row.calls = bench_.turns[t].calls;
      row.seconds.push_back(events[i + 1].microseconds_since(events[i]) * 1e-6 / row.calls);
    }
    bench_.meeting.wait();
  }

  Bench& bench_;
  const int rank_;
  const gpu::Stream stream_;
  const gpu::Buffer values_;
};

}  // namespace

int run_collective_bench_on_gpus(const CollectiveBenchParams& params, const CollectiveHooks& hooks) {
  const std::vector<int64_t> sizes = collective_sizes(params);
  hooks.on_status("links", 0, int(sizes.size()) + 1);
  const int n_ranks = int(params.devices.size());
  Bench bench{.params = params,
              .hooks = hooks,
              .sizes = sizes,
              .candidates = open_candidates(params, *std::ranges::max_element(sizes) / 4, hooks),
              .meeting = Meeting(n_ranks)};
  const auto run_rank = [&](int rank) {
    try {
      gpu::use_device(params.devices[size_t(rank)]);
      Rank(bench, rank).run();
    } catch (...) {
      bench.meeting.fail(std::current_exception());
      for (const Candidate& candidate : bench.candidates) candidate.group->end();
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < n_ranks; ++rank) threads.emplace_back(run_rank, rank);
  run_rank(0);
  for (std::thread& thread : threads) thread.join();
  bench.meeting.rethrow();
  return bench.n_failed;
}

}  // namespace ridge::lab
