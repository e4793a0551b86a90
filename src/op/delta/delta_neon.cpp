// The kernel of op/delta/delta_simd.h for NEON.
#include "op/simd/neon.h"
// The Simd struct above must come first.
#include "op/delta/delta_simd.h"
#include "op/delta/kernels.h"

namespace ridge {

void delta_step_neon(int64_t key_dim, int64_t value_dim, float keep, float beta, const float* q, const float* k,
                     const float* v, const float* before, float* state, float* out) {
  delta_step(key_dim, value_dim, keep, beta, q, k, v, before, state, out);
}

}  // namespace ridge
