// The op bench on a GPU.
#include <chrono>

#include "lab/op/device_ceilings.h"
#include "lab/op/op_bench_loop.h"

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

/// Target of the bench loop: a GPU.
class GpuTarget {
 public:
  using Run = OpRun;
  using Work = DeviceWork;

  explicit GpuTarget(OpDevice of_device) : device(std::move(of_device)), reader_(device.device.pci_bus_id) {}

  void measure_bandwidth(const OpBenchParams& params, const std::function<bool()>& stop) {
    const DeviceCeilings ceilings = measure_device_ceilings({.device = params.device,
                                                             .bytes = params.roof_bytes,
                                                             .replays = 20,
                                                             .max_seconds = 3,
                                                             .read_only = true,
                                                             .stop = stop});
    const StreamResult* best = ceilings.best_read();
    bandwidth = {ceilings.read_gb_s(), best ? best->name : ""};
  }
  int64_t cache_bytes() const { return int64_t(device.device.l2_bytes); }
  /// Half of what is free: kernels may need scratch of their own.
  int64_t budget_bytes() const { return gpu::free_bytes() / 2; }
  std::unique_ptr<OpRun> open(const OpKernel& kernel, const OpProblem& problem, int n_sets, uint64_t seed) const {
    return kernel.open(problem, stream_, n_sets, seed);
  }
  void call_once(OpRun& run) const {
    run.queue(stream_, 0);
    stream_.synchronize();
  }
  OpCheck check(OpRun& run, int set) const { return run.check(stream_, set); }
  DeviceWork work(OpRun& run, int n_sets) const {
    return {n_sets, [&run](gpu::StreamHandle stream, int set) { run.queue(stream, set); }};
  }
  std::vector<CallTimes> time(std::span<const DeviceWork> works, const TimerOptions& options) const {
    return time_on_device(stream_, works, options);
  }
  std::optional<GpuState> state() { return reader_.now(); }

  const OpDevice device;
  OpBandwidth bandwidth;

 private:
  gpu::Stream stream_;
  StateReader reader_;
};

}  // namespace

int run_op_bench_on_gpu(const OpBenchParams& params, std::span<const OpKernel> table, const OpBenchHooks& hooks) {
  const gpu::DeviceReport report = gpu::query_devices();
  gpu::use_device(params.device);
  GpuTarget target({.index = params.device,
                    .device = report.devices.at(size_t(params.device)),
                    .driver_version = report.driver_version,
                    .runtime_version = report.runtime_version});
  return run_op_bench_loop(target, params, table, hooks);
}

}  // namespace ridge::lab
