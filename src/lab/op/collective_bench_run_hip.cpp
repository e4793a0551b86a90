// The collective bench of GPUs in a build for AMD. Takes the place of collective_bench_run_cuda.cpp.
#include "base/result.h"
#include "gpu/device_query.h"
#include "lab/op/collective_bench.h"

namespace ridge::lab {

int run_collective_bench_on_gpus(const CollectiveBenchParams&, const CollectiveHooks&) {
  throw_error(ErrorKind::usage, "bench collective: {} (leave out --device for ranks on the CPU)", gpu::kOneGpu);
}

}  // namespace ridge::lab
