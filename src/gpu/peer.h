// Devices that write to each other's memory. Defined in builds with RIDGE_CUDA only; errors as in gpu/device.h.
#pragma once

#include <span>
#include <string>

namespace ridge::gpu {

/// Lets every one of the devices of this process write to the others' memory, what is allocated from here on and what was
/// before. Returns why that cannot be, naming two devices; empty when it can. Whole packets (gpu/packet.h) need a link that
/// knows atomic operations: NVLink.
std::string open_peer_access(std::span<const int> devices);

/// The device this thread works on.
int current_device();

/// Makes a device this thread's for a scope.
class OnDeviceScope {
 public:
  explicit OnDeviceScope(int device);
  ~OnDeviceScope();
  OnDeviceScope(const OnDeviceScope&) = delete;
  OnDeviceScope& operator=(const OnDeviceScope&) = delete;

 private:
  int before_;
};

}  // namespace ridge::gpu
