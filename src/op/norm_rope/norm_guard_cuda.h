// The factors of RMSNorm that kernels make of squares in float. For device code only.
#pragma once

namespace ridge {

/// `factor`, or NaN where the mean of the squares is beyond float or no number: 1 / sqrt of it is 0 then, and the row
/// would read as zeros, which hides that it is out of range.
__device__ inline float guarded_factor(float mean_square, float factor) {
  return mean_square <= 3.402823466e+38f ? factor : __int_as_float(0x7FC00000);
}

}  // namespace ridge
