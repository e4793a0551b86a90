// Takes the place of src/lab/op/op_kernels.cpp in the program ridge_planted: the table has the reference product and a
// copy of it that gets one output wrong. The shipped program has no such kernel.
#include "lab/op/op_kernels.h"
#include "op/kernels.h"

namespace ridge::lab {
namespace {

void linear_planted(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  linear_ref(context, w, x, y);
  y(y.rows - 1, y.cols / 2) += 0.5f;
}

constexpr LinearVariant kVariants[] = {{"ref", Isa::scalar, needs_rows, linear_ref},
                                       {"planted-error", Isa::scalar, needs_rows, linear_planted}};

}  // namespace

std::span<const OpKernel> op_kernels() {
  static const std::vector<OpKernel> kernels = cpu_gemv_kernels({kVariants, kVariants});
  return kernels;
}

}  // namespace ridge::lab
