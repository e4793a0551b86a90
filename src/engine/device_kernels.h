// Choices of kernels on a device, for measurements.
#pragma once

#include <span>
#include <string>

#include "op/device_linear.h"

namespace ridge {

struct DeviceOptions {
  ForcedKernels kernels;  ///< of gemv and gemm
  bool overlap = true;    ///< programmatic dependent launch inside a recorded step
};
/// From "op=name" entries: gemv and gemm by the names of device_linear_variants(), several joined by '+';
/// launch=plain|overlap. Throws usage, naming the choices.
DeviceOptions parse_device_kernels(std::span<const std::string> kernels);

}  // namespace ridge
