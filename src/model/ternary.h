// BitNet matrices: ternary codes with one scale, from master weights or from whatever format a file keeps them in.
#pragma once

#include "base/aligned.h"
#include "io/tensor.h"

namespace ridge {

/// i2_s rows [n_out, n_in] in units of `scale`.
struct TernaryMatrix {
  AlignedBuffer rows;
  float scale = 1;
};

/// The rule of BitNet b1.58 on master weights: scale = max(mean |W|, 1e-5) over the matrix, code = round(W / scale),
/// ties to even, clamped to -1..1. Fails on NaN and infinity and on rows that are no multiple of 128; messages have no
/// tensor name.
Result<TernaryMatrix> quantize_ternary(const io::Tensor& matrix);

/// A matrix that holds only -s, 0 and +s for one s (as converters write BitNet matrices in tq1_0, tq2_0, f16 ...), its
/// codes kept and scale = s. Anything else fails.
Result<TernaryMatrix> repack_ternary(const io::Tensor& matrix);

}  // namespace ridge
