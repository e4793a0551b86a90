// Declarations of the kernels of one token and one value head, for the table.
#pragma once

#include "op/delta/delta.h"

namespace ridge {

DeltaStep delta_step_ref, delta_step_avx2, delta_step_avx512, delta_step_neon;

}  // namespace ridge
