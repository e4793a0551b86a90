#include "lab/op/op_kernels.h"

namespace ridge::lab {

std::span<const OpKernel> op_kernels() {
  static const std::vector<OpKernel> kernels = [] {
    std::vector<OpKernel> all(gpu_op_kernels().begin(), gpu_op_kernels().end());
    for (auto rows : {cpu_attention_kernels(), cpu_gemv_kernels(), cpu_append_kernels()})
      all.insert(all.end(), rows.begin(), rows.end());
    return all;
  }();
  return kernels;
}

}  // namespace ridge::lab
