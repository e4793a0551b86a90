// The loop of an op bench, the same on every device. Included by the two files that have a device's part of it:
// op_bench_cpu.cpp and op_bench_run_cuda.cpp.
#pragma once

#include <algorithm>

#include "lab/op/device_timer.h"
#include "lab/op/op_bench.h"

namespace ridge::lab {

/// The read bandwidth that rows are held against.
struct OpBandwidth {
  double gb_s = 0;
  std::string kernel;
};

/// One kernel's buffers and what is known of it so far.
template <class Run>
struct OpCandidate {
  const OpKernel* kernel = nullptr;
  std::unique_ptr<Run> run;
  OpRow row;
};

/// Opens a kernel and holds its first call against the reference. The row says whether it may be timed.
template <class Target>
OpCandidate<typename Target::Run> open_candidate(Target& target, const OpBenchParams& params, const OpProblem& problem,
                                                 const OpKernel& kernel, int64_t budget_bytes) {
  OpCandidate<typename Target::Run> c;
  c.kernel = &kernel;
  c.row.problem = problem;
  c.row.kernel = kernel.name;
  c.row.work = op_work(problem);
  c.row.moved_bytes = moved_bytes_of(kernel, problem);
  c.row.set_bytes = kernel.set_bytes(problem);
  c.row.sets = choose_buffer_sets(c.row.set_bytes, target.cache_bytes(), budget_bytes, params.max_sets);
  c.row.roof_gb_s = target.bandwidth.gb_s;
  c.row.roof_kernel = target.bandwidth.kernel;
  c.row.device = target.device;
  c.row.seed = params.seed;
  c.row.date = utc_now();
  if (c.row.sets.n == 0)
    throw_error(ErrorKind::no_memory,
                "{} {} {}: {} needs {:.3f} GB of memory, {:.3f} GB are left for it (fewer kernels, a smaller shape)",
                op_name(problem.op), problem.shape_text(), problem.format_text(), kernel.name,
                double(c.row.set_bytes) / 1e9, double(budget_bytes) / 1e9);
  c.run = target.open(kernel, problem, c.row.sets.n, params.seed);
  target.call_once(*c.run);
  c.row.check = target.check(*c.run, 0);
  return c;
}

/// Times the candidates whose check passed, in turns, and looks at what the last calls left.
template <class Target>
void time_candidates(Target& target, const OpBenchParams& params, const OpBenchHooks& hooks,
                     std::vector<OpCandidate<typename Target::Run>>& candidates) {
  std::vector<OpCandidate<typename Target::Run>*> timed;
  std::vector<typename Target::Work> works;
  for (auto& c : candidates) {
    if (c.row.failed()) continue;
    timed.push_back(&c);
    works.push_back(target.work(*c.run, c.row.sets.n));
  }
  const auto times = target.time(works, {.replays = params.replays,
                                         .min_replay_seconds = 2e-3,
                                         .max_calls = 2048,
                                         .max_seconds = params.max_seconds,
                                         .stop = hooks.stop});
  for (size_t i = 0; i < timed.size(); ++i) {
    OpRow& row = timed[i]->row;
    // Every set that a timed call has used: whole turns were made, or the sets from the first one on.
    const int n_used =
        std::min<int64_t>(row.sets.n, std::max<int64_t>(1, times[i].calls * int64_t(times[i].seconds.size())));
    for (const int set : {n_used - 1, 0}) {
      OpCheck after = target.check(*timed[i]->run, set);
      if (after.passed()) continue;
      row.check = std::move(after);
      row.after_replays = true;
      break;
    }
    if (row.after_replays) continue;
    row.calls = times[i].calls;
    row.seconds = times[i].seconds;
  }
}

/// The problems that a kernel takes, with these. Throws usage, or calls on_skipped, for the others.
std::vector<std::pair<OpProblem, KernelChoice>> plan_op_bench(const OpBenchParams& params,
                                                              std::span<const OpKernel> table, const OpDevice& device,
                                                              const OpBenchHooks& hooks);

/// run_op_bench() on a Target:
///   Run, Work              OpRun or CpuOpRun, and what its timer takes
///   device, bandwidth      what rows say; measure_bandwidth() sets `bandwidth`
///   cache_bytes(), budget_bytes()   last-level cache; memory that one problem may use
///   open(), call_once(), check(), work(), time(), state()
template <class Target>
int run_op_bench_loop(Target& target, const OpBenchParams& params, std::span<const OpKernel> table,
                      const OpBenchHooks& hooks) {
  const auto work = plan_op_bench(params, table, target.device, hooks);
  const int total = int(work.size()) + 1;
  hooks.on_status("read bandwidth", 0, total);
  target.measure_bandwidth(params, hooks.stop);
  int n_failed = 0, done = 1;
  for (const auto& [problem, choice] : work) {
    if (hooks.stop()) break;
    hooks.on_status(fmt::format("{} {}", problem.shape_text(), problem.format_text()), done++, total);
    const int64_t budget_bytes = target.budget_bytes() / int64_t(choice.kernels.size());
    std::vector<OpCandidate<typename Target::Run>> candidates;
    for (const OpKernel* kernel : choice.kernels) {
      candidates.push_back(open_candidate(target, params, problem, *kernel, budget_bytes));
      if (hooks.on_predicted) hooks.on_predicted(candidates.back().row);
    }
    const std::optional<GpuState> before = target.state();
    time_candidates(target, params, hooks, candidates);
    const std::optional<GpuState> after = target.state();
    for (auto& c : candidates) {
      if (!c.row.failed() && c.row.seconds.empty()) continue;  // stopped before its first replay
      c.row.before = before;
      c.row.after = after;
      n_failed += c.row.failed();
      if (hooks.on_row) hooks.on_row(c.row);
    }
  }
  return n_failed;
}

}  // namespace ridge::lab
