// Devices that write to each other's memory. Defined in builds with RIDGE_CUDA only; errors as in gpu/device.h.
#pragma once

#include <span>
#include <string>

namespace ridge::gpu {

/// Why one of the devices cannot send whole packets (gpu/packet.h) to another one, naming both; empty when all can.
/// That takes access to the other's memory, over a link that knows atomic operations: NVLink.
std::string why_no_packets(std::span<const int> devices);

/// Lets every one of the devices of this process write to the others' memory, what is allocated from here on and what
/// was before. Returns why_no_packets().
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
