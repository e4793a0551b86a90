// The op bench on the CPU.
#include "lab/op/cpu_timer.h"
#include "lab/op/op_bench_loop.h"
#include "lab/rows/machine.h"

namespace ridge::lab {
namespace {

/// Target of the bench loop: the CPU.
class CpuTarget {
 public:
  using Run = CpuOpRun;
  using Work = CpuWork;

  CpuTarget(int n_threads, Isa isa) : context_(n_threads, isa) {
    device.isa = context_.isa;
    device.n_threads = context_.pool.size();
    device.cache_bytes = machine_info().last_level_cache_bytes();
  }

  void measure_bandwidth(const OpBenchParams& params, const std::function<bool()>& stop) {
    const Ceilings ceilings = measure_ceilings({.n_threads = params.n_threads,
                                                .isa = params.isa,
                                                .bytes = params.roof_bytes,
                                                .repeats = 11,
                                                .max_seconds = 3,
                                                .read_only = true,
                                                .stop = stop});
    bandwidth = {ceilings.read_gb_s(), "read " + ceilings.kernel};
  }
  int64_t cache_bytes() const { return device.cache_bytes; }
  /// Half of what is available: making data needs some too.
  int64_t budget_bytes() const { return machine_info().available_bytes / 2; }
  std::unique_ptr<CpuOpRun> open(const OpKernel& kernel, const OpProblem& problem, int n_sets, uint64_t seed) {
    return kernel.open_cpu(problem, context_, n_sets, seed);
  }
  void call_once(CpuOpRun& run) {
    run.prepare(0, 1);
    run.call(0);
  }
  OpCheck check(CpuOpRun& run, int set) { return run.check(set); }
  CpuWork work(CpuOpRun& run, int n_sets) {
    return {.n_sets = n_sets,
            .call = [&run](int set) { run.call(set); },
            .prepare = [&run](int first_set, int calls) { run.prepare(first_set, calls); },
            .most_calls = run.most_calls(),
            .calls_multiple = run.calls_multiple()};
  }
  std::vector<CallTimes> time(std::span<const CpuWork> works, const TimerOptions& options) {
    return time_on_cpu(works, options);
  }
  std::optional<GpuState> state() { return std::nullopt; }

  OpDevice device;
  OpBandwidth bandwidth;

 private:
  CpuContext context_;
};

}  // namespace

int run_op_bench_on_cpu(const OpBenchParams& params, std::span<const OpKernel> table, const OpBenchHooks& hooks) {
  CpuTarget target(params.n_threads, find_isa(params.isa).or_throw());
  return run_op_bench_loop(target, params, table, hooks);
}

}  // namespace ridge::lab
