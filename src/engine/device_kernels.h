// Choices of kernels on a device, for measurements.
#pragma once

#include <span>
#include <string>

#include "model/weights.h"
#include "op/device_linear.h"

namespace ridge {

struct DeviceOptions {
  ForcedKernels kernels;       ///< of gemv, gemm, router, experts and delta
  bool overlap = true;         ///< programmatic dependent launch inside a recorded step
  bool spread_router = true;   ///< ExpertRouter::spread
  bool int_experts = true;     ///< DeviceExpertMatmul::run_chosen() where it serves
  bool delta_in_parts = true;  ///< DeviceDelta::in_parts
};
/// From "op=name" entries: the ops and kernels of device_kernel_tables(). Throws usage, naming the choices.
DeviceOptions parse_device_kernels(std::span<const std::string> kernels);

/// Throws usage for a matrix that no kernel serves, or none of those that are forced, and for a forced kernel that no
/// matrix runs.
void check_device_kernels(const Weights& weights, const ForcedKernels& forced);

}  // namespace ridge
