// The part of the doctor that looks at GPUs.
#pragma once

#include "lab/store/doctor.h"

namespace ridge::lab {

/// Device, driver, clocks, MIG, counters, toolkit; one line where there is no GPU.
std::vector<Check> examine_gpu(const Surroundings& here);

}  // namespace ridge::lab
