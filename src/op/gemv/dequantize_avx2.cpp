// Whole matrices to floats for avx2.
#include "op/simd/avx2.h"
// The Simd struct above must come first.
#include "op/gemv/dequantize.h"
#include "op/simd/decode.h"

namespace ridge {

void dequantize_rows_avx2(const Linear& w, int64_t first, int64_t last, float* out) {
  const RowDecoder decode = row_decoder(*w.format);
  const int64_t row_bytes = w.n_in / w.format->group * w.format->block_bytes;
  for (int64_t r = first; r < last; ++r) decode(w.rows + r * row_bytes, w.n_in, out + r * w.n_in);
}

}  // namespace ridge
