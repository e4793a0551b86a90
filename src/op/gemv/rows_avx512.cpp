// Row kernels (op/gemv/rows_simd.h) for avx512.
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/gemm/strips_simd.h"
#include "op/kernels.h"

namespace ridge {

void rows_avx512(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  if (y.rows == 1) run_few<R1>(context, w, x, y);
  else if (y.rows <= kMostFew) run_few<Simd::kLanes / kFewTokens>(context, w, x, y);
  else run_strips(context, w, x, y);
}

}  // namespace ridge
