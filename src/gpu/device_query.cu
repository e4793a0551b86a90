// query_devices() through the CUDA runtime. Creates no context, so it costs no device memory.
#include "gpu/device_query.h"

#include <numeric>

#include "gpu/launch.h"
#include "gpu/peer.h"
#include "ridge/error.h"

namespace ridge::gpu {

DeviceReport query_devices() {
  DeviceReport report;
  // Both calls leave 0 behind when they fail, which is what the fields then mean.
  cudaDriverGetVersion(&report.driver_version);
  cudaRuntimeGetVersion(&report.runtime_version);
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    report.why_none = kIsHip ? "no AMD GPU: HIP says: " : "CUDA says: ";
    report.why_none += cudaGetErrorString(error);
    return report;
  }
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) continue;
    char pci_bus_id[32] = "";
    if (cudaDeviceGetPCIBusId(pci_bus_id, sizeof pci_bus_id, index) != cudaSuccess) pci_bus_id[0] = '\0';
    std::string gfx;
#ifdef __HIP__
    gfx = properties.gcnArchName;  // "gfx1100:sramecc-:xnack-"
    gfx = gfx.substr(0, gfx.find(':'));
#endif
    report.devices.push_back({.name = properties.name,
                              .sm = 10 * properties.major + properties.minor,
                              .n_processors = properties.multiProcessorCount,
                              .memory_bytes = properties.totalGlobalMem,
                              .l2_bytes = uint64_t(properties.l2CacheSize),
                              .gfx = gfx,
                              .pci_bus_id = pci_bus_id});
  }
  if (report.devices.empty())
    report.why_none = count == 0 ? "the driver lists none" : "none of the listed devices answers";
  return report;
}

std::string why_no_links() {
  std::vector<int> devices(query_devices().devices.size());
  std::iota(devices.begin(), devices.end(), 0);
  try {
    return why_no_packets(devices);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace ridge::gpu
