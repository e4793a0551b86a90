// Ternary times int8 on the device: the product of op/gemv/ternary.h, equal to its reference bit for bit.
#pragma once

#include <cstdint>

#include "gpu/device.h"

namespace ridge {

/// n_in must be a multiple of this (16 int8 values are one load); rows of i2_s are multiples of 128.
inline constexpr int64_t kDeviceTernaryColumns = 16;

/// Bytes of scratch for a batch: its activations in int8 and a float per row.
inline int64_t device_ternary_scratch_bytes(int64_t n_rows, int64_t n_in) { return n_rows * (n_in + 4); }

/// y[r][o] = (float(sum over i of q[r][i] w[o][i]) * row_scale[r]) * scale, q and row_scale being the int8 activations
/// of op/gemv/ternary.h. x [n_rows, n_in] and y [n_rows, n_out] are float32, w [n_out, n_in] is int8 codes -1, 0, 1,
/// all on the device; `scale` is the matrix's (Linear::scale). x, w and `scratch` (device_ternary_scratch_bytes) start
/// at multiples of 16 bytes; throws Error(failure) when they do not.
///
/// Sums are exact integers up to n_in of 2^24, so a row's result does not depend on how many rows there are. A row with
/// a NaN or infinity gives NaN, whose payload may differ from the CPU's.
void device_ternary_gemm(gpu::StreamHandle stream, int64_t n_rows, int64_t n_out, int64_t n_in, const float* x,
                         const int8_t* w, float scale, void* scratch, float* y);

}  // namespace ridge
