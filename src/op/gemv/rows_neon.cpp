// Row kernels (op/gemv/rows_simd.h, op/gemv/strips_simd.h) and whole matrices to floats for NEON.
#include "op/simd/neon.h"
// The Simd struct above must come first.
#include "op/gemv/dequantize_simd.h"
#include "op/gemv/strips_simd.h"
#include "op/kernels.h"

namespace ridge {

void rows_neon(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  run_rows(context, w, x, y);
}
ScratchBytes rows_neon_scratch(const Linear& w, int64_t n_tokens, int n_threads) {
  return rows_scratch(w, n_tokens, n_threads);
}
void dequantize_rows_neon(const Linear& w, int64_t first, int64_t last, float* out) {
  dequantize_rows_simd(w, first, last, out);
}

}  // namespace ridge
