// Kernels of matrix products on a device.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

namespace ridge {

using ForcedKernels = std::map<std::string, std::string, std::less<>>;

struct DeviceLinearVariant {
  std::string_view name;
};
std::span<const DeviceLinearVariant> device_linear_variants();

}  // namespace ridge
