// Row kernels (op/gemv/rows_simd.h) for avx2.
#include "op/simd/avx2.h"
// The Simd struct above must come first.
#include "op/gemm/tiles_simd.h"
#include "op/kernels.h"

namespace ridge {

void rows_avx2(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  if (y.rows <= 32) run_few(context, w, x, y); else run_strips(context, w, x, y);
}

}  // namespace ridge
