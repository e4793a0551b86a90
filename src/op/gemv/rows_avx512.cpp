// Row kernels (op/gemv/rows_simd.h, op/gemv/strips_simd.h) for avx512.
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/gemv/strips_simd.h"
#include "op/kernels.h"

namespace ridge {

void rows_avx512(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  run_rows(context, w, x, y);
}

}  // namespace ridge
