// Whole matrices to floats for avx512.
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/gemv/dequantize_simd.h"

namespace ridge {

void dequantize_rows_avx512(const Linear& w, int64_t first, int64_t last, float* out) {
  dequantize_rows_simd(w, first, last, out);
}

}  // namespace ridge
