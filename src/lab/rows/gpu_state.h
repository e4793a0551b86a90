// Clocks and temperature of a GPU while it is measured, as the driver's own tool says.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lab/rows/results.h"

namespace ridge::lab {

struct GpuState {
  int sm_mhz = 0, memory_mhz = 0, temperature_c = 0;
};

/// "1980, 3201, 41": SM and memory clock in MHz, degrees Celsius. Nothing when any of the three is not a number.
std::optional<GpuState> parse_gpu_state(std::string_view line);

/// Asks nvidia-smi about the device `pci_bus_id` (as in gpu::Device), or about the only one there is when it does not
/// know that. Nothing when it is not installed or does not say all three. Takes a fraction of a second.
std::optional<GpuState> read_gpu_state(const std::string& pci_bus_id);

/// {"sm_mhz", "memory_mhz", "temperature_c"}, or null.
Row to_row(const std::optional<GpuState>& state);

}  // namespace ridge::lab
