// The ceilings that models are held against: what the memory they run from gives, measured in the same run.
#pragma once

#include "lab/op/ceilings.h"

namespace ridge::lab {

struct MachineCeilingOptions {
  std::string device = "cpu";  ///< "cpu", "cuda[:N]" or "cuda:N,M,..."
  int n_stages = 1;            ///< of several devices, which a step goes through one after another
  int n_threads = 0;           ///< of the CPU
  std::string isa;             ///< of the CPU: limit, empty for the best
  bool rates = false;          ///< multiply-adds too
  std::function<bool()> stop;
};

struct MachineCeilings {
  double read_gb_s = 0;           ///< of all devices of a stage together
  int64_t llc_bytes = 0;          ///< last-level cache in front of that memory
  std::vector<RateResult> rates;  ///< when they were asked for; of one device
};

/// Takes some three seconds, or fewer where RIDGE_ROOF_SECONDS says so, as tests do; three reads are the least.
/// Throws as measure_ceilings() and measure_device_ceilings() do.
MachineCeilings measure_machine_ceilings(const MachineCeilingOptions& options);

}  // namespace ridge::lab
