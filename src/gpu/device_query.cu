// query_devices() through the CUDA runtime. Creates no context, so it costs no device memory.
#include <cuda_runtime.h>

#include "gpu/device_query.h"

namespace ridge::gpu {

DeviceReport query_devices() {
  DeviceReport report;
  // Both calls leave 0 behind when they fail, which is what the fields then mean.
  cudaDriverGetVersion(&report.driver_version);
  cudaRuntimeGetVersion(&report.runtime_version);
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    report.why_none = std::string("no CUDA device: ") +
                      (count == 0 && error == cudaSuccess ? "the driver lists none" : cudaGetErrorString(error));
    return report;
  }
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) continue;
    report.devices.push_back({.name = properties.name,
                              .sm = 10 * properties.major + properties.minor,
                              .n_processors = properties.multiProcessorCount,
                              .memory_bytes = properties.totalGlobalMem,
                              .l2_bytes = uint64_t(properties.l2CacheSize)});
  }
  if (report.devices.empty()) report.why_none = "no CUDA device: none of those listed answers";
  return report;
}

}  // namespace ridge::gpu
