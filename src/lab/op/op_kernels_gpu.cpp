// The build without CUDA; op_kernels_gpu_cuda.cpp replaces this file in the other one.
#include "lab/op/op_kernels.h"

namespace ridge::lab {

std::span<const OpKernel> gpu_op_kernels() { return {}; }

}  // namespace ridge::lab
