// Row kernels (op/norm_rope/rows_simd.h) for NEON.
#include "op/simd/neon.h"
// The Simd struct above must come first.
#include "op/norm_rope/kernels.h"
#include "op/norm_rope/rows_simd.h"

namespace ridge {

void rms_norm_neon(const float* x, const float* weight, float eps, int64_t n, float* y) {
  rms_norm_row(x, weight, eps, n, y);
}
void swiglu_neon(float* gate, const float* up, int64_t n) { swiglu_row(gate, up, n); }
void gelu_glu_neon(float* gate, const float* up, int64_t n) { gelu_glu_row(gate, up, n); }

}  // namespace ridge
