// The table of benched kernels of a GPU, those of an op worst to best. A new one is a file op_bench_NAME_cuda.cpp, its
// declaration in op_kernels.h, and one row here. Rows with overlap stand before the same kernel without: calls of a
// bench do not depend on each other, so what overlaps there may not overlap in a model, and the plain figure is the
// default.
#include "lab/op/op_kernels.h"

namespace ridge::lab {

std::span<const OpKernel> gpu_op_kernels() {
  static const std::vector<OpKernel> kernels = [] {
    std::vector<OpKernel> all = gpu_attention_kernels();
    for (const OpKernel* kernel :
         {&kGemvTwoOp, &kGemvLibrary, &kGemvTiles, &kGemvBricksOverlap, &kGemvBricks, &kGemvBricksInt8Overlap,
          &kGemvBricksInt8, &kGemvInt1Plane, &kGemvIntOverlap, &kGemvInt2Planes, &kGemvTernaryOverlap, &kGemvTernary,
          &kGemmBricks, &kGemmTernary, &kGemmInt4})
      all.push_back(*kernel);
    for (OpKernel& kernel : gpu_append_kernels()) all.push_back(std::move(kernel));
    return all;
  }();
  return kernels;
}

}  // namespace ridge::lab
