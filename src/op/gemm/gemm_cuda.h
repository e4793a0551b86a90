// Matmuls on the device, in float32.
#pragma once

#include <cstdint>

#include "gpu/device.h"

namespace ridge {

/// y[r][o] = sum over i of x[r][i] w[o][i]: x [n_rows, n_in], w [n_out, n_in], y [n_rows, n_out], all float32 on the
/// device. Every sum runs over i in rising order in one fused multiply-add chain, so a row's result does not depend on
/// how many rows there are: prefill, decode and any batch agree bit for bit.
void device_gemm(gpu::StreamHandle stream, int64_t n_rows, int64_t n_out, int64_t n_in, const float* x, const float* w,
                 float* y);

}  // namespace ridge
