#include "lab/model/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>

#include "engine/finite.h"
#include "gpu/device_query.h"
#include "lab/op/machine_ceilings.h"

namespace ridge::lab {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// One test: its session and tokens, run as often as asked.
class BenchRunner {
 public:
  BenchRunner(const Model& model, const BenchTest& test, const BenchParams& params, const BenchHooks& hooks)
      : model_(model),
        test_(test),
        params_(params),
        hooks_(hooks),
        rng_(params.seed),
        on_device_(model.info().device.starts_with(gpu::kDeviceWord)),
        session_(model, session_options(test.kv, test.n_ctx(), test.n_ubatch)) {}

  const Session& session() const { return session_; }

  /// The timed part behind a fresh cache at the test's depth; nothing when asked to stop.
  std::optional<double> run_once(int n_prompt, int n_gen) {
    reach_depth();
    const auto prompt = random_tokens(model_, n_prompt, rng_), steps = random_tokens(model_, n_gen, rng_);
    std::span<const float> logits;
    const auto start = Clock::now();
    for (size_t first = 0; first < prompt.size(); first += size_t(test_.n_batch))
      logits =
          session_.prefill(std::span(prompt).subspan(first, std::min(prompt.size() - first, size_t(test_.n_batch))));
    if ((on_device_ || params_.temperature > 0) && n_gen > 0) {
      // The first step makes logits; then steps feed themselves, and the host looks on.
      session_.decode(steps[0]);
      logits = {};  // generate() looks at them
      SamplerOptions sampler;
      sampler.temperature = params_.temperature;
      sampler.seed = params_.seed;
      if (n_gen > 1) session_.generate(sampler, {}, n_gen, [&](int32_t) { return !hooks_.stop(); });
    } else {
      for (const int32_t token : steps) {
        logits = session_.decode(token);
        if (hooks_.stop()) return std::nullopt;
      }
    }
    const double seconds = seconds_since(start);
    if (!logits.empty()) check_logits(logits);
    return hooks_.stop() ? std::nullopt : std::optional(seconds);
  }

  /// Bytes of the mean decode step: reading grows by a row a step, so the ends' mean is the mean of all.
  double mean_step_bytes() {
    session_.fill(test_.n_depth + test_.n_prompt, params_.seed);
    const auto first = double(session_.decode_read_bytes());
    session_.fill(test_.n_ctx() - 1, params_.seed);
    return (first + double(session_.decode_read_bytes())) / 2;
  }

 private:
  void reach_depth() {
    session_.reset();
    if (test_.n_depth == 0) return;
    if (params_.real_prefill) session_.prefill(random_tokens(model_, test_.n_depth, rng_));
    else session_.fill(test_.n_depth, params_.seed);
  }

  const Model& model_;
  const BenchTest& test_;
  const BenchParams& params_;
  const BenchHooks& hooks_;
  Rng rng_;
  bool on_device_;
  Session session_;
};

/// Times one test into `row`. False when asked to stop.
bool time_test(const Model& model, const BenchParams& params, const BenchHooks& hooks, BenchRow& row) {
  BenchRunner runner(model, row.test, params, hooks);
  row.cache = runner.session().kv_report();
  row.kernels = runner.session().kernels();
  if (params.warm_up && !runner.run_once(row.test.n_prompt, std::min(row.test.n_gen, kWarmUpTokens))) return false;
  const ExpertHits before = model.expert_hits();
  for (int repeat = 0; repeat < params.repeats; ++repeat) {
    const auto seconds = runner.run_once(row.test.n_prompt, row.test.n_gen);
    if (!seconds) return false;
    row.seconds.push_back(*seconds);
  }
  row.hits = model.expert_hits();
  row.hits.n_chosen -= before.n_chosen;
  row.hits.n_found -= before.n_found;
  if (row.test.n_gen > 0) row.read_bytes = runner.mean_step_bytes();
  row.date = utc_now();
  return true;
}

MeanDeviation rates(const BenchRow& row) {
  std::vector<double> samples;
  for (const double seconds : row.seconds) samples.push_back(double(row.n_tokens()) / seconds);
  return mean_deviation(samples);
}
MeanDeviation times_ns(const BenchRow& row) {
  std::vector<double> samples;
  for (const double seconds : row.seconds) samples.push_back(seconds * 1e9);
  return mean_deviation(samples);
}

}  // namespace

MeanDeviation mean_deviation(const std::vector<double>& samples) {
  if (samples.empty()) return {kNaN, 0};
  double sum = 0, squares = 0;
  for (const double sample : samples) {
    if (!(sample > 0) || !std::isfinite(sample)) return {kNaN, 0};
    sum += sample;
  }
  const double mean = sum / double(samples.size());
  for (const double sample : samples) squares += (sample - mean) * (sample - mean);
  return {mean, samples.size() > 1 ? std::sqrt(squares / double(samples.size() - 1)) : 0};
}

double BenchRow::avg_tokens_per_second() const { return rates(*this).mean; }
double BenchRow::stddev_tokens_per_second() const { return rates(*this).deviation; }
double BenchRow::avg_ns() const { return times_ns(*this).mean; }
double BenchRow::stddev_ns() const { return times_ns(*this).deviation; }
double BenchRow::read_gb_s() const {
  return test.n_prompt == 0 && test.n_gen > 0 ? read_bytes * avg_tokens_per_second() / 1e9 : kNaN;
}
double ModelBenchRow::pct_of_roof(double gb_s) const {
  return roof_gb_s > 0 && model.host_step_bytes == 0 ? 100 * gb_s / roof_gb_s : kNaN;
}

int run_bench(const BenchParams& params, const BenchHooks& hooks) {
  const std::vector<BenchTest> tests = bench_tests(params);
  std::vector<LoadOptions> loads;
  for (const int n_threads : params.n_threads)
    for (const int n_cpu_moe : params.n_cpu_moe) {
      LoadOptions& load = loads.emplace_back(params.load);
      load.n_threads = n_threads;
      load.n_cpu_moe = n_cpu_moe;
    }
  int n_failed = 0, done = 0;
  const int total = int(params.models.size() * (loads.size() * tests.size() + (params.check ? 1 : 0)));
  const auto status = [&](const std::string& what) { hooks.on_status(what, done, total); };
  const auto step = [&](const std::string& what) { hooks.on_status(what, done++, total); };
  for (const std::string& path : params.models) {
    check_layers_are_distinct(path, params.load.device);
    status("loading " + path);
    std::optional<BenchReference> reference;
    if (params.check) {
      step("the reference of " + path);
      reference.emplace(path);
    }
    for (const LoadOptions& load : loads) {
      status("read bandwidth");
      const MachineCeilings machine = hooks.stop() ? MachineCeilings()
                                                   : measure_machine_ceilings({.device = load.device,
                                                                               .n_stages = load.n_stages,
                                                                               .n_threads = load.n_threads,
                                                                               .isa = load.isa,
                                                                               .stop = hooks.stop});
      if (hooks.stop()) return n_failed;
      const Model model = Model::load(path, load);
      for (BenchTest test : tests) {
        if (test.by_record) test.kv = params.by_record(model, test.n_ctx());
        step(test.text());
        BenchRow row;
        row.model = model.info();
        row.test = test;
        row.roof_gb_s = machine.read_gb_s;
        row.llc_bytes = machine.llc_bytes;
        row.seed = params.seed;
        row.real_prefill = params.real_prefill;
        row.temperature = params.temperature;
        if (reference)
          row.check =
              reference->compare(model, {.kv = test.kv, .depth = test.n_depth}, params.seed, params.check_bound);
        if (params.check && !row.check.passed) {
          ++n_failed;
          hooks.on_failed(row);
        } else {
          if (!time_test(model, params, hooks, row)) return n_failed;
          hooks.on_row(row);
        }
      }
    }
  }
  return n_failed;
}

}  // namespace ridge::lab
