// Which GPUs this machine offers. Any build may call it; only a build with RIDGE_CUDA asks a driver.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ridge::gpu {

/// One CUDA device as the driver describes it.
struct Device {
  std::string name;
  int sm = 0;  ///< compute capability, 10 * major + minor: 90 is Hopper
  int n_processors = 0;
  uint64_t memory_bytes = 0;
  uint64_t l2_bytes = 0;
  std::string pci_bus_id;  ///< "0000:1B:00.0", what other tools know it by; empty when the driver does not say
};

struct DeviceReport {
  std::string why_none;     ///< why `devices` is empty; empty when it is not
  int driver_version = 0;   ///< newest CUDA the driver serves, 1000 * major + 10 * minor; 0 without a driver
  int runtime_version = 0;  ///< CUDA this program was built with, same form; 0 in a build without CUDA
  std::vector<Device> devices;
};

/// Asks the driver. A machine without one, or without a device, is a report that says so, never an error.
DeviceReport query_devices();

/// why_no_packets() of all devices (gpu/peer.h): why one cannot write to the memory of another one as several that hold
/// a model together do. Empty when all can, and for less than two devices.
std::string why_no_links();

}  // namespace ridge::gpu
