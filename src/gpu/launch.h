// What *.cu files share: error checks and reductions inside a warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ridge::gpu {

/// Throws Error with `what` and CUDA's words unless `code` is success.
void check(cudaError_t code, const char* what);

/// Reports a launch that was refused (configuration, missing code for this GPU).
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

template <class T>
__device__ T warp_sum(T value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

__device__ inline float warp_max(float value) {
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

/// Sum over a block of kThreads threads, the same in every thread.
template <int kThreads>
__device__ double block_sum(double value) {
  __shared__ double parts[kThreads / 32];
  value = warp_sum(value);
  __syncthreads();  // an earlier call may still be reading
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  for (int i = 0; i < kThreads / 32; ++i) total += parts[i];
  return total;
}

}  // namespace ridge::gpu
