#include <algorithm>
#include <chrono>

#include "lab/device_ceilings.h"
#include "lab/device_timer.h"
#include "lab/op_bench.h"

namespace ridge::lab {
namespace {

/// nvidia-smi takes long enough to be asked every few seconds only.
class StateReader {
 public:
  explicit StateReader(std::string pci_bus_id) : pci_bus_id_(std::move(pci_bus_id)) { read(); }
  const std::optional<GpuState>& now() {
    constexpr auto kOften = std::chrono::seconds(2);
    if (Clock::now() - read_at_ > kOften) read();
    return state_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  void read() {
    state_ = read_gpu_state(pci_bus_id_);
    read_at_ = Clock::now();
  }
  std::string pci_bus_id_;
  std::optional<GpuState> state_;
  Clock::time_point read_at_;
};

/// One kernel's buffers and what is known of it so far.
struct Candidate {
  std::unique_ptr<OpRun> run;
  OpRow row;
};

/// Opens a kernel and holds its first call against the reference. The row says whether it may be timed.
Candidate open_candidate(const OpBenchParams& params, const OpProblem& problem, const OpKernel& kernel,
                         const gpu::Stream& stream, const gpu::Device& device, int64_t budget_bytes) {
  Candidate c;
  c.row.problem = problem;
  c.row.kernel = kernel.name;
  c.row.work = op_work(problem);
  c.row.set_bytes = kernel.set_bytes(problem);
  c.row.sets = choose_buffer_sets(c.row.set_bytes, int64_t(device.l2_bytes), budget_bytes, params.max_sets);
  c.row.date = utc_now();
  if (c.row.sets.n == 0)
    throw Error(ErrorKind::no_memory,
                fmt::format("{} {} {}: {} needs {:.1f} GB of device memory, {:.1f} GB are left for it (fewer --kernel, "
                            "a smaller shape)",
                            op_name(problem.op), problem.shape_text(), problem.format_text(), kernel.name,
                            double(c.row.set_bytes) / 1e9, double(budget_bytes) / 1e9));
  c.run = kernel.open(problem, stream, c.row.sets.n, params.seed);
  c.run->queue(stream, 0);
  stream.synchronize();
  c.row.check = c.run->check(stream, 0);
  return c;
}

/// Times the candidates whose check passed, replays alternating, and looks at what the last replay left.
void time_candidates(const OpBenchParams& params, const gpu::Stream& stream, const OpBenchHooks& hooks,
                     std::vector<Candidate>& candidates) {
  std::vector<DeviceWork> works;
  std::vector<Candidate*> timed;
  for (Candidate& c : candidates) {
    if (c.row.failed()) continue;
    timed.push_back(&c);
    works.push_back({c.row.sets.n, [run = c.run.get()](gpu::StreamHandle s, int set) { run->queue(s, set); }});
  }
  const auto times =
      time_on_device(stream, works, {.replays = params.replays, .max_seconds = params.max_seconds, .stop = hooks.stop});
  for (size_t i = 0; i < timed.size(); ++i) {
    OpRow& row = timed[i]->row;
    OpCheck after = timed[i]->run->check(stream, row.sets.n - 1);
    if (!after.passed()) {
      row.check = std::move(after);
      row.after_replays = true;
      continue;
    }
    row.calls = times[i].calls;
    row.seconds = times[i].seconds;
  }
}

}  // namespace

int run_op_bench(const OpBenchParams& params, std::span<const OpKernel> table, const OpBenchHooks& hooks) {
  const gpu::DeviceReport report = gpu::query_devices();
  gpu::use_device(params.device);
  const OpDevice device{.index = params.device,
                        .device = report.devices.at(size_t(params.device)),
                        .driver_version = report.driver_version,
                        .runtime_version = report.runtime_version};
  const auto stopped = [&] { return hooks.stop && hooks.stop(); };
  const auto status = [&](const std::string& what, int done, int total) {
    if (hooks.on_status) hooks.on_status(what, done, total);
  };

  std::vector<std::pair<OpProblem, KernelChoice>> work;
  for (OpProblem& problem : op_problems(params)) {
    KernelChoice choice = choose_kernels(params, problem, table, device.device);
    if (!choice.kernels.empty()) work.emplace_back(std::move(problem), std::move(choice));
    else if (params.formats_given())
      throw Error(ErrorKind::usage, fmt::format("no kernel of {} takes {}, {} ({})", op_name(problem.op),
                                                problem.shape_text(), problem.format_text(), choice.why_none));
    else if (hooks.on_skipped) hooks.on_skipped(problem, choice.why_none);
  }
  const int total = int(work.size()) + 1;
  status("read bandwidth", 0, total);
  const DeviceCeilings roof = measure_device_ceilings({.device = params.device,
                                                       .bytes = params.roof_bytes,
                                                       .replays = 20,
                                                       .max_seconds = 3,
                                                       .read_only = true,
                                                       .stop = hooks.stop});
  const gpu::Stream stream;
  StateReader state(device.device.pci_bus_id);
  int n_failed = 0, done = 1;
  for (const auto& [problem, choice] : work) {
    if (stopped()) break;
    status(fmt::format("{} {}", problem.shape_text(), problem.format_text()), done++, total);
    // Half of what is free: kernels may need scratch of their own.
    const int64_t budget = gpu::free_bytes() / 2 / int64_t(choice.kernels.size());
    std::vector<Candidate> candidates;
    for (const OpKernel* kernel : choice.kernels)
      candidates.push_back(open_candidate(params, problem, *kernel, stream, device.device, budget));
    const auto before = state.now();
    time_candidates(params, stream, hooks, candidates);
    const auto after = state.now();
    for (Candidate& c : candidates) {
      if (!c.row.failed() && c.row.seconds.empty()) continue;  // stopped before its first replay
      c.row.roof_gb_s = roof.read_gb_s();
      if (const StreamResult* best = roof.best_read()) c.row.roof_kernel = best->name;
      c.row.before = before;
      c.row.after = after;
      n_failed += c.row.failed();
      if (hooks.on_row) hooks.on_row(c.row, device);
    }
  }
  return n_failed;
}

}  // namespace ridge::lab
