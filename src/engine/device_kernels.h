// Choices of kernels on a device, for measurements.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "model/weights.h"
#include "op/device_linear.h"
#include "op/experts/experts_cuda.h"

namespace ridge {

/// Steps of up to so many tokens of one text give the same bits with kernel rows=four.
inline constexpr int kMostExactTokens = 4;

struct DeviceOptions {
  ForcedKernels kernels;       ///< of gemv, gemm and experts
  bool overlap = true;         ///< programmatic dependent launch inside a recorded step
  bool int_experts = true;     ///< run_chosen() and ExpertCall::ints of DeviceExpertMatmul, where they serve
  int least_rows = 1;          ///< of a recorded step, for padded_rows(): fewer tokens take the kernels of so many
  CpuContext* host = nullptr;  ///< what computes experts in host memory, where the plan has some
};
/// From "op=name" entries: the ops and kernels of device_kernel_tables(). Throws usage, naming the choices.
DeviceOptions parse_device_kernels(std::span<const std::string> kernels);

/// Throws usage for a matrix that no kernel serves, or none of those that are forced, and for a forced kernel that no
/// matrix runs.
void check_device_kernels(const Weights& weights, const ForcedKernels& forced);

}  // namespace ridge
