#include "gpu/launch.h"
#include "op/norm_rope/relu2_cuda.h"

namespace ridge {
namespace {

constexpr int kThreads = 256;

__global__ void relu2_glu_kernel(int64_t n, float* gate, const float* up) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float positive = gate[i] < 0 ? 0 : gate[i];  // keeps NaN
  gate[i] = __fmul_rn(__fmul_rn(positive, positive), up[i]);
}

}  // namespace

void device_relu2_glu(gpu::StreamHandle stream, int64_t n, float* gate, const float* up) {
  if (n == 0) return;
  relu2_glu_kernel<<<unsigned(gpu::ceil_div(n, kThreads)), kThreads, 0, stream>>>(n, gate, up);
  gpu::check_launch("relu2_glu");
}

}  // namespace ridge
