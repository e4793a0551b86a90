// The build without CUDA; op_bench_run_cuda.cpp replaces this file in the other one.
#include "lab/op/op_bench.h"

namespace ridge::lab {

int run_op_bench_on_gpu(const OpBenchParams& params, std::span<const OpKernel>, const OpBenchHooks&) {
  throw_error(ErrorKind::no_device, "device cuda:{} is not available: this program was built without CUDA",
              params.device);
}

}  // namespace ridge::lab
