// Declarations of the row kernels, for the table.
#pragma once

#include "op/norm_rope/norm_rope.h"

namespace ridge {

using RmsNormKernel = void(const float* x, const float* weight, float eps, int64_t n, float* y);
using GluKernel = void(float* gate, const float* up, int64_t n);
RmsNormKernel rms_norm_ref, rms_norm_avx2, rms_norm_avx512, rms_norm_neon;
GluKernel swiglu_ref, swiglu_avx2, swiglu_avx512, swiglu_neon;
GluKernel gelu_glu_ref, gelu_glu_avx2, gelu_glu_avx512, gelu_glu_neon;

}  // namespace ridge
