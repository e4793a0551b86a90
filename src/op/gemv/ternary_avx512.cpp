// Ternary kernels (op/gemv/ternary_simd.h) for avx512.
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/gemv/ternary_simd.h"
#include "op/kernels.h"

namespace ridge {

void ternary_avx512(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  run_ternary(context, w, x, y);
}

}  // namespace ridge
