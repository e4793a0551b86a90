// Bench of sums over ranks (the op all_reduce): GPUs of one process, a thread each, or CPU ranks of an MPI job.
//
// Every rank gives `bytes` of floats. The result is held against the sum, on every rank, before the timing and again
// after it; values are whole numbers, so that every order of adding gives the same. Several kernels are timed in turns.
// On GPUs a sample is a replay of a graph of calls, timed by the first rank's device; on the CPU a sample of calls by
// its clock.
//
// A rank cannot send and take less than 2 (n - 1) / n of its bytes, in any way of summing: that many in the time of a
// call are its link's use, held against the rate of large copies from the first rank to the second one, measured in the
// same run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/op/ceilings.h"
#include "lab/op/op_bench.h"
#include "lab/rows/results.h"
#include "rank/ranks.h"

namespace ridge::lab {

struct CollectiveBenchParams {
  std::vector<int64_t> bytes;        ///< whole floats; empty: 4 KiB, doubled up to 8 MiB
  std::vector<int> devices;          ///< of the ranks, where they are GPUs
  std::vector<std::string> kernels;  ///< on GPUs, of op/collective/collective.h; empty: what a model takes; "all"
  int replays = 60;
  double max_seconds = 10;     ///< of a size
  int64_t roof_bytes = 0;      ///< of one large copy; 0 chooses
  double rank_timeout_s = 60;  ///< of GPUs; Ranks have their own
  uint64_t seed = 42;
};

struct CollectiveRow : Timed {
  std::string kernel;
  int n_ranks = 0;
  int64_t bytes = 0;         ///< of a rank
  double link_gb_s = 0;      ///< one direction
  std::vector<int> devices;  ///< of the ranks, where they are GPUs
  uint64_t seed = 0;
  std::string date;

  /// Bandwidth of the bytes that a rank must send in the median call, GB/s (10^9).
  double gb_s() const;
  double pct_of_link() const;
};

struct CollectiveHooks : RunHooks {
  std::function<void(const CollectiveRow& row)> on_row;  ///< failed ones too: they hold no times
  /// With "all", a kernel that this machine cannot run.
  std::function<void(const std::string& kernel, const std::string& why)> on_skipped;
};

/// The sizes that are measured. Throws usage for one that is not of whole floats.
std::vector<int64_t> collective_sizes(const CollectiveBenchParams& params);

/// Both return the number of rows whose check failed. On GPUs: throws Error no_device, usage as DeviceGroup does.
int run_collective_bench_on_gpus(const CollectiveBenchParams& params, const CollectiveHooks& hooks);
/// Every rank calls it; only the first one's hooks are called.
int run_collective_bench_on_cpu(Ranks& ranks, const CollectiveBenchParams& params, const CollectiveHooks& hooks);

/// Value i of a rank, and of the sum of ranks. This and the functions below serve both benches.
float collective_value(int rank, int64_t i, uint64_t seed);
/// Counts the values that differ from the sum of n_ranks.
OpCheck check_collective(std::span<const float> sums, int n_ranks, uint64_t seed);
/// A row without its check and times.
CollectiveRow collective_row(std::string kernel, int n_ranks, int64_t bytes, double link_gb_s,
                             const CollectiveBenchParams& params);
/// Calls of a sample and samples, from the time of one call.
struct CollectiveTurns {
  int calls = 1, samples = 1;
};
CollectiveTurns collective_turns(double seconds, int n_kernels, const CollectiveBenchParams& params);

Columns<CollectiveRow> collective_columns();

}  // namespace ridge::lab
