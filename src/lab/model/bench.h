// bench decode: prefill and decode speed of whole models, checked against the reference kernels before it is timed.
//
// A row of a decode test says how many bytes a step must read (the ops' declared work), the rate that gives, and the
// share of the machine's read bandwidth, measured by our own kernel in the same run. Above 100 % the byte count is
// wrong, or the working set stays in the last-level cache: then the row says so. Tokenizing is outside the time, and so
// is sampling on the CPU, but with a temperature.
#pragma once

#include <functional>

#include "lab/model/bench_check.h"
#include "lab/model/bench_params.h"
#include "lab/op/ceilings.h"
#include "lab/rows/columns.h"
#include "lab/rows/run_hooks.h"

namespace ridge::lab {

/// Fields that rows about whole models share: model, cache, check, and bytes that a decode step reads.
struct ModelBenchRow {
  ModelInfo model;
  KvReport cache;
  std::vector<std::string> kernels;
  BenchCheck check;
  ExpertHits hits;        ///< of the timed repeats
  double read_bytes = 0;  ///< mean of a decode step; 0 without decode steps
  double roof_gb_s = 0;   ///< of memory
  int64_t llc_bytes = 0;  ///< last-level cache
  uint64_t seed = 0;
  std::string date;

  /// Whether the bytes that a decode step reads fit in the last-level cache: memory bandwidth is no ceiling then.
  bool in_cache() const { return read_bytes > 0 && read_bytes <= double(llc_bytes); }
  /// NaN without memory bandwidth, and with experts in host memory: two bandwidths bound such a step.
  double pct_of_roof(double gb_s) const;
  /// "81.3 %", "81.3 % (in cache)", "".
  std::string roof_text(double gb_s) const;
  /// "ok 1.2e-06", "off".
  std::string checked_text() const;
};

struct BenchRow : ModelBenchRow {
  BenchTest test;
  std::vector<double> seconds;  ///< one per repeat
  bool real_prefill = false;    ///< the depth was reached by running a prompt
  float temperature = 0;

  int64_t n_tokens() const { return test.n_prompt + test.n_gen; }
  /// NaN when the clock gave nothing usable.
  double avg_tokens_per_second() const;
  double stddev_tokens_per_second() const;
  double avg_ns() const;
  double stddev_ns() const;
  /// Bandwidth of a pure decode test, GB/s (10^9); NaN for other tests.
  double read_gb_s() const;
  double pct_of_roof() const { return ModelBenchRow::pct_of_roof(read_gb_s()); }
};

/// Mean and sample standard deviation; NaN mean when a sample is not a positive number, deviation 0 for one sample.
struct MeanDeviation {
  double mean = 0;
  double deviation = 0;
};
MeanDeviation mean_deviation(const std::vector<double>& samples);

template <class Row>
struct ModelBenchHooks : RunHooks {
  std::function<void(const Row& row)> on_row = [](const Row&) {};     ///< rows whose check passed (or was switched off)
  std::function<void(const Row& row)> on_failed = [](const Row&) {};  ///< rows whose check failed: they hold no times
};
using BenchHooks = ModelBenchHooks<BenchRow>;

/// Runs everything in order. Returns the number of rows whose check failed.
int run_bench(const BenchParams& params, const BenchHooks& hooks);

/// llama-bench's fields in its order, then ours.
Columns<BenchRow> bench_columns();
/// Those that rows of other benches of models have too: what ran where, and the cache, the check and the kernels.
Columns<BenchRow> bench_run_columns();
Columns<BenchRow> bench_cache_columns();

}  // namespace ridge::lab
