// A whole matrix as floats in memory: the first half of the literal two ops, dequantise then multiply, that fused
// kernels are held against (`two-op` of bench gemv). Models never do this.
#pragma once

#include "op/linear.h"

namespace ridge {

/// Decodes rows [first, last) of a matrix to out [n_out, n_in].
using DequantizeRows = void(const Linear& w, int64_t first, int64_t last, float* out);
DequantizeRows dequantize_rows_ref, dequantize_rows_avx2, dequantize_rows_avx512, dequantize_rows_neon;

struct DequantizeVariant {
  std::string_view name;
  Isa isa;
  Support (*supports)(const Linear& w);
  DequantizeRows* rows;
};
std::span<const DequantizeVariant> dequantize_variants();

/// w.rows as floats, out [n_out, n_in]; w.scale is not applied.
void dequantize(CpuContext& context, const Linear& w, float* out);

}  // namespace ridge
