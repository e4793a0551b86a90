// Multiply-adds in registers on a GPU: matmuls of tensor cores by mma.sync, and float32 by the ordinary units.
// What sm_90's wgmma would give on top is not measured: no kernel here uses it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "gpu/device.h"

namespace ridge {

struct DeviceRate {
  std::string_view number;  ///< what is multiplied: "int8", "f16", "bf16", "f32"
  std::string_view name;    ///< "mma.sync s8", ...
};
std::span<const DeviceRate> device_rates();

/// Float sums stay below 2^24.
inline constexpr int kMostDeviceRateRounds = 1 << 16;
/// Partial sums, so that blocks do not queue up for one word.
inline constexpr int kDeviceRateSums = 256;
/// Starts one grid of `rounds` rounds that fills the device; adds to sums [kDeviceRateSums] what in total is
/// device_rate_sum(). Operands are ones.
void device_rate(gpu::StreamHandle stream, int variant, int rounds, uint32_t* sums);
/// Sum (wrapping) that a call leaves on the current device.
uint32_t device_rate_sum(int variant, int rounds);
/// Operations of a call on the current device, two a multiply-add.
int64_t device_rate_ops(int variant, int rounds);

}  // namespace ridge
