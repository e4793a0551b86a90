// The build without CUDA; op_kernels_cuda.cpp replaces this file in the other one.
#include "lab/op_bench.h"

namespace ridge::lab {

std::span<const OpKernel> op_kernels() { return {}; }

}  // namespace ridge::lab
