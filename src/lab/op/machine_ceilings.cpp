#include "lab/op/machine_ceilings.h"

#include <algorithm>
#include <cstdlib>

#include "engine/device_name.h"
#include "lab/op/device_ceilings.h"

namespace ridge::lab {
namespace {

double ceiling_seconds() {
  const char* text = std::getenv("RIDGE_ROOF_SECONDS");
  return text ? std::clamp(std::strtod(text, nullptr), 0.0, 3.0) : 3.0;
}

}  // namespace

MachineCeilings measure_machine_ceilings(const MachineCeilingOptions& options) {
  if (const std::vector<int> devices = parse_devices(options.device); !devices.empty()) {
    MachineCeilings machine;
    for (const int device : devices) {
      DeviceCeilings ceilings = measure_device_ceilings({.device = device,
                                                         .max_seconds = ceiling_seconds(),
                                                         .read_only = true,
                                                         .rates = options.rates,
                                                         .stop = options.stop});
      machine.read_gb_s += ceilings.read_gb_s() / options.n_stages;
      machine.llc_bytes += int64_t(ceilings.device.l2_bytes);
      machine.rates = std::move(ceilings.rates);
    }
    return machine;
  }
  Ceilings ceilings = measure_ceilings({.n_threads = options.n_threads,
                                        .isa = options.isa,
                                        .repeats = 60,
                                        .max_seconds = ceiling_seconds(),
                                        .read_only = true,
                                        .rates = options.rates,
                                        .stop = options.stop});
  return {ceilings.read_gb_s(), machine_info().last_level_cache_bytes(), std::move(ceilings.rates)};
}

}  // namespace ridge::lab
