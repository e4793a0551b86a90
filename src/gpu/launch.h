// Helpers that *.cu files share: launches, error checks and reductions inside a warp.
//
// Kernels are launched by launch() and ask for dynamic shared memory by dynamic_shared(): plain C++, so that tests can
// run them on a CPU (tests/emulate).
#pragma once

#ifdef __HIP__
#include <tuple>

#include "gpu/hip_names.h"
#include "gpu/hip_shim.h"
#else
#include <cuda_runtime.h>
#endif

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "gpu/device.h"
#include "gpu/launch_log.h"

namespace ridge::gpu {

/// Shape of a launch.
struct Grid {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;
  StreamHandle stream = nullptr;
  /// Programmatic dependent launch, where the device knows it: the grid may start while the one before it drains. Its
  /// kernel must call wait_for_previous_grid() before it touches that grid's results.
  bool overlap = false;
  /// Weights that the grid reads once, or by blocks at about the same time: they leave L2 before code, caches and
  /// activations do, where the device can say so. Bytes beyond what the device takes are memory like all other.
  std::span<const std::byte> weights = {};
  /// Neighbours along x that run at the same time, up to 8, and read each other's shared memory (gpu/warpgroup.h);
  /// where device_has_warpgroups().
  unsigned cluster = 1;
};

/// Throws Error with `what` and the runtime's words unless `code` is success.
void check(cudaError_t code, const char* what);

#ifdef __HIP__
/// As below, without Grid::overlap, Grid::weights and Grid::cluster.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, Arguments&&... args) {
  std::tuple<Parameters...> values(static_cast<Parameters>(std::forward<Arguments>(args))...);
  std::apply(
      [&](auto&... value) {
        void* places[] = {&value...};
        check(hipLaunchKernel(reinterpret_cast<const void*>(kernel), grid.blocks, grid.threads, places,
                              grid.shared_bytes, grid.stream),
              name);
      },
      values);
  log_launch(name);
}
template <class... Parameters>
void allow_shared_bytes(const char* name, void (*kernel)(Parameters...), size_t bytes) {
  check(hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize,
                            int(bytes)),
        name);
}
#else
/// The launch attributes of a grid.
class LaunchAttributes {
 public:
  explicit LaunchAttributes(const Grid& grid);
  cudaLaunchAttribute* data() { return attributes_; }
  unsigned size() const { return n_; }

 private:
  cudaLaunchAttribute attributes_[3] = {};
  unsigned n_ = 0;
};

/// Starts kernel(args...). `name` is for error messages and the launch log.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, Arguments&&... args) {
  LaunchAttributes attributes(grid);
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = grid.stream;
  config.attrs = attributes.data();
  config.numAttrs = attributes.size();
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(args)...), name);
  log_launch(name);
}

/// Lets the kernel be launched with this much dynamic shared memory; above 48 KiB it must be asked for. Throws when the
/// device has less.
template <class... Parameters>
void allow_shared_bytes(const char* name, void (*kernel)(Parameters...), size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), name);
}
#endif

/// A fact of the current device.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&value, attribute, device), "device attribute");
  return value;
}
inline int multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }

/// The block's dynamic shared memory, aligned to 128 bytes.
template <class T>
__device__ T* dynamic_shared() {
#ifdef __CUDA_EMULATED__
  return static_cast<T*>(emulate::dynamic_shared());
#else
  extern __shared__ __align__(128) unsigned char ridge_dynamic_shared[];
  return reinterpret_cast<T*>(ridge_dynamic_shared);
#endif
}

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
