// profile: where the time of a decode step, or of a prompt's chunk, goes: op by op on the CPU, kernel by kernel on a
// GPU, held against the bytes each must move and the read bandwidth measured in the same run.
//
// The calls of a step follow one another, so parts and the gaps between them add up to the step. Of all profiled steps
// the middle half by duration are averaged: parts, gaps and step are means over the same steps.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kv_choice.h"
#include "lab/model/bench_check.h"
#include "lab/rows/columns.h"
#include "lab/rows/run_hooks.h"
#include "op/trace.h"
#include "ridge/engine.h"

namespace ridge::gpu {
struct LaunchLog;
struct KernelTime;
}  // namespace ridge::gpu

namespace ridge::lab {

/// One step as it ran: calls of ops on the CPU, kernels on a device. Of an op with several kernels the first has all
/// the work.
struct ProfiledStep {
  double start_us = 0, us = 0;
  std::vector<OpCall> calls;
  double parts_us() const;
};

/// Calls of a step that do the same thing.
struct ProfilePart {
  std::string op, what, kernel;
  double calls = 0;  ///< a step
  double us = 0;     ///< a step
  Work work;         ///< a step
  OpCounters counters;
  std::string name() const { return what.empty() ? op : op + " " + what; }
};

/// The ceilings that parts are held against; 0 where unknown.
struct ProfileCeilings {
  double read_gb_s = 0;
  double int8_gop_s = 0;    ///< multiply-adds of bytes, two operations each
  double float_gop_s = 0;   ///< of float32 on the CPU, of f16 on a GPU's tensor cores
  int64_t cache_bytes = 0;  ///< last level: parts that move less than this may stay in it from step to step

  /// Ceiling for the arithmetic of a part's kernel.
  double gop_s(const ProfilePart& part) const;
};

/// Limit of a part: "memory" or "compute" when the larger of the two ceilings' times explains at least kExplainedShare
/// of its time, else "latency": launches, barriers, dependent instructions.
inline constexpr double kExplainedShare = 0.4;
std::string_view part_bound(const ProfilePart& part, const ProfileCeilings& ceilings);

/// Means over the middle half of the steps by duration (all when there are fewer than four), largest part first.
struct Attribution {
  int n_steps = 0;  ///< that were averaged
  double step_us = 0, parts_us = 0;
  double median_us = 0, lower_us = 0, upper_us = 0;  ///< of all steps
  double calls = 0;
  Work work;
  std::vector<ProfilePart> parts;
  double gap_us() const { return step_us - parts_us; }
};
Attribution attribute(const std::vector<ProfiledStep>& steps);

/// Steps out of the launches the host logged and the kernels the device ran, which must be as many, in the same order.
/// A step begins with an op "embed" and lasts from the end of the kernel before it to the end of its last kernel; the
/// first step, before which nothing is known, is left out.
Result<std::vector<ProfiledStep>> device_steps(const gpu::LaunchLog& log, const std::vector<gpu::KernelTime>& times);

/// A step in the format of chrome://tracing and Perfetto: layers above ops.
Row trace_events(const ProfiledStep& step, std::string_view title);

struct ProfileParams {
  std::string model;
  LoadOptions load;
  KvChoice kv;
  int n_depth = 0;
  int n_prompt = 0;  ///< 0: decode steps; else a prompt's chunk of so many tokens
  int n_steps = 32;
  double max_seconds = 30;
  uint64_t seed = 42;
  bool counters = false;              ///< of the processor, in the recorded steps; CPU only
  bool check = true;                  ///< blocks of the model against the reference kernels, before anything is timed
  std::optional<double> check_bound;  ///< as BenchReference::compare() takes it
};

struct Profile {
  ModelInfo model;
  KvReport cache;
  std::string kv;
  int n_depth = 0, n_tokens = 1;
  bool prefill = false;
  ProfileCeilings ceilings;
  Attribution attribution;
  double untraced_us = 0;       ///< median of steps without a record
  int64_t step_read_bytes = 0;  ///< declared for a decode step: weights and cache
  BenchCheck check;
  ProfiledStep example;         ///< the median step
  bool counted = false;         ///< parts have counters
  std::string why_not_counted;  ///< when they were asked for
  uint64_t seed = 0;
  std::string date;
};

using ProfileHooks = RunHooks;

/// Nothing when `stop` said so. Throws as Model::load and Session do; no_device where kernels cannot be timed; gate
/// where the check failed.
std::optional<Profile> run_profile(const ProfileParams& params, const ProfileHooks& hooks);

Columns<Profile> profile_columns();
/// Fields and columns of its parts.
std::vector<ColumnText> profile_part_texts();
/// The table for people.
std::string profile_markdown(const Profile& profile);

}  // namespace ridge::lab
