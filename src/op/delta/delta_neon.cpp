// The kernel of op/delta/delta_simd.h for NEON.
#include "op/simd/neon.h"
// The Simd struct above must come first.
#include "op/delta/delta_simd.h"
#include "op/delta/kernels.h"

namespace ridge {

void delta_step_neon(const DeltaToken& d) { delta_step(d); }

}  // namespace ridge
