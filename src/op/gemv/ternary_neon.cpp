// Ternary kernels (op/gemv/ternary_simd.h) for NEON.
#include "op/simd/neon.h"
// The Simd struct above must come first.
#include "op/gemv/ternary_simd.h"
#include "op/kernels.h"

namespace ridge {

void ternary_neon(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  run_ternary(context, w, x, y);
}

}  // namespace ridge
