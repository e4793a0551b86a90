// The benches of a GPU in the build without CUDA; gpu_bench_cuda.cpp replaces this file in the other one.
#include "lab/op/collective_bench.h"
#include "lab/op/device_ceilings.h"
#include "lab/op/device_timer.h"
#include "lab/op/op_kernels.h"

namespace ridge::lab {
namespace {

[[noreturn]] void no_device(int device) {
  throw_error(ErrorKind::no_device, "device cuda:{} is not available: this program was built without CUDA", device);
}

}  // namespace

std::span<const OpKernel> gpu_op_kernels() { return {}; }

int run_op_bench_on_gpu(const OpBenchParams& params, std::span<const OpKernel>, const OpBenchHooks&) {
  no_device(params.device);
}
int run_collective_bench_on_gpus(const CollectiveBenchParams& params, const CollectiveHooks&) {
  no_device(params.devices.at(0));
}
DeviceCeilings measure_device_ceilings(const DeviceCeilingOptions& options) { no_device(options.device); }
std::vector<CallTimes> time_on_device(const gpu::Stream&, std::span<const DeviceWork>, const TimerOptions&) {
  no_device(0);
}
std::vector<double> time_round_trips(const gpu::Stream&, const DeviceWork&, int) { no_device(0); }

}  // namespace ridge::lab
