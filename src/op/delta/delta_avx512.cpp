// The kernel of op/delta/delta_simd.h for avx512.
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/delta/delta_simd.h"
#include "op/delta/kernels.h"

namespace ridge {

void delta_step_avx512(const DeltaToken& d) { delta_step(d); }

}  // namespace ridge
