// Which GPUs this machine offers. Any build may call it; only a build with RIDGE_CUDA or RIDGE_HIP asks a driver.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/runtime_types.h"

namespace ridge::gpu {

/// Word for devices in options and messages: "cuda", or "hip" in a build for AMD.
inline constexpr std::string_view kDeviceWord = kIsHip ? "hip" : "cuda";
/// "cuda:0".
inline std::string device_text(int index) { return std::string(kDeviceWord) + ":" + std::to_string(index); }
/// Why a build for AMD refuses several GPUs.
inline constexpr const char* kOneGpu = "a build for AMD runs a model on one GPU: links between GPUs are left out";

/// A device as its driver describes it.
struct Device {
  /// "sm_90", "gfx1100".
  std::string target() const { return gfx.empty() ? "sm_" + std::to_string(sm) : gfx; }

  std::string name;
  int sm = 0;  ///< compute capability, 10 * major + minor: 90 is Hopper
  int n_processors = 0;
  uint64_t memory_bytes = 0;
  uint64_t l2_bytes = 0;
  std::string gfx;         ///< of an AMD GPU, without features: "gfx1100"
  std::string pci_bus_id;  ///< "0000:1B:00.0", what other tools know it by; empty when the driver does not say
};

struct DeviceReport {
  std::string why_none;  ///< why `devices` is empty; empty when it is not
  /// Newest CUDA the driver serves, 1000 * major + 10 * minor, or HIP's number, 10^7 * major + 10^5 * minor + patch; 0
  /// without a driver.
  int driver_version = 0;
  int runtime_version = 0;  ///< this program was built with, same form; 0 in a build without CUDA and HIP
  std::vector<Device> devices;
};

/// Asks the driver. A machine without one, or without a device, is a report that says so, never an error.
DeviceReport query_devices();

/// why_no_packets() of all devices (gpu/peer.h): why one cannot write to the memory of another one as several that hold
/// a model together do. Empty when all can, and for less than two devices.
std::string why_no_links();

}  // namespace ridge::gpu
