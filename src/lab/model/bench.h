// bench decode: prefill and decode speed of whole models, checked against the reference kernels before it is timed.
//
// A row of a decode test says how many bytes a step must read (the ops' declared work), the rate that gives, and the
// share of the machine's read bandwidth, measured by our own kernel in the same run. Above 100 % the byte count is
// wrong, or the working set stays in the last-level cache: then the row says so. Tokenizing and sampling are outside
// the time.
#pragma once

#include <functional>

#include "lab/model/bench_check.h"
#include "lab/model/bench_params.h"
#include "lab/op/ceilings.h"
#include "lab/store/results.h"

namespace ridge::lab {

struct BenchRow {
  ModelInfo model;
  BenchTest test;
  KvReport cache;
  std::vector<std::string> kernels;
  BenchCheck check;
  std::vector<double> seconds;  ///< one per repeat
  double read_bytes = 0;        ///< mean of a decode step; 0 without decode steps
  double roof_gb_s = 0;         ///< of memory
  int64_t llc_bytes = 0;        ///< last-level cache
  std::string date;

  int64_t n_tokens() const { return test.n_prompt + test.n_gen; }
  /// NaN when the clock gave nothing usable.
  double avg_tokens_per_second() const;
  double stddev_tokens_per_second() const;
  double avg_ns() const;
  double stddev_ns() const;
  /// Of a pure decode test, GB/s (10^9); NaN otherwise.
  double read_gb_s() const;
  double pct_of_roof() const;
  /// What a decode step reads fits in the last-level cache: memory is no roof for it.
  bool in_cache() const { return read_bytes > 0 && read_bytes <= double(llc_bytes); }
};

/// Mean and sample standard deviation; NaN mean when a sample is not a positive number, deviation 0 for one sample.
struct MeanDeviation {
  double mean = 0;
  double deviation = 0;
};
MeanDeviation mean_deviation(const std::vector<double>& samples);

struct BenchHooks {
  std::function<bool()> stop;
  std::function<void(const std::string& what, int done, int total)> on_status;
  std::function<void(const BenchRow& row)> on_row;     ///< rows whose check passed (or was switched off)
  std::function<void(const BenchRow& row)> on_failed;  ///< rows whose check failed: they hold no times
};

/// Runs everything in order. Returns the number of rows whose check failed.
int run_bench(const BenchParams& params, const BenchHooks& hooks);

/// llama-bench's fields in its order, then ours. `samples` adds samples_ns and samples_ts.
Row bench_fields(const BenchRow& row, const BenchParams& params, bool samples);

enum class BenchFormat : uint8_t { md, csv, json, jsonl, sql };
Result<BenchFormat> find_bench_format(std::string_view name);

/// Writes rows as they come, in any of the formats.
class BenchWriter {
 public:
  BenchWriter(BenchFormat format, std::FILE* out) : format_(format), out_(out) {}
  void add(const BenchRow& row, const BenchParams& params);
  void finish();

 private:
  void line(const std::string& text);
  BenchFormat format_;
  std::FILE* out_;
  int n_rows_ = 0;
};

}  // namespace ridge::lab
