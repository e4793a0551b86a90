// Whole matrices to floats, once per ISA after its Simd struct.
#pragma once

#include "op/gemv/dequantize.h"
#include "op/simd/decode.h"

namespace ridge {
namespace {

inline void dequantize_rows_simd(const Linear& w, int64_t first, int64_t last, float* out) {
  const RowDecoder decode = row_decoder(*w.format);
  const int64_t row_bytes = w.n_in / w.format->group * w.format->block_bytes;
  for (int64_t r = first; r < last; ++r) decode(w.rows + r * row_bytes, w.n_in, out + r * w.n_in);
}

}  // namespace
}  // namespace ridge
