// The element-wise ops of norm_rope.h on the device: same definitions, all pointers in device memory.
#pragma once

#include <cstdint>

#include "gpu/device.h"

namespace ridge {

/// y[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight over rows of n; y may be x.
void device_rms_norm(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, const float* weight,
                     float eps, float* y);

/// device_rms_norm() of rows less their mean: LayerNorm without a bias.
void device_layer_norm(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, const float* weight,
                       float eps, float* y);

/// sums[r] = sum of x[r]^2 over rows of n
void device_sum_squares(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, float* sums);

/// As device_rms_norm(), in place, of rows that are parts of ones of n_whole values, whose squares add up to sums[r].
void device_rms_norm_part(gpu::StreamHandle stream, int64_t n_rows, int64_t n, int64_t n_whole, const float* sums,
                          const float* weight, float eps, float* x);

/// gate = silu(gate) * up over n values
void device_swiglu(gpu::StreamHandle stream, int64_t n, float* gate, const float* up);

/// gate = max(gate, 0)^2 * up over n values, equal to relu2_glu bit for bit; a NaN stays one
void device_relu2_glu(gpu::StreamHandle stream, int64_t n, float* gate, const float* up);

/// x = max(x, 0)^2 over n values; a NaN stays one
void device_relu2(gpu::StreamHandle stream, int64_t n, float* x);

/// gate = gelu(gate) * up over n values, gelu by its tanh form as gelu_glu
void device_gelu_glu(gpu::StreamHandle stream, int64_t n, float* gate, const float* up);

/// gate = g sigmoid(1.702 g) (u + 1) over n values, clamped as clamped_swiglu
void device_clamped_swiglu(gpu::StreamHandle stream, int64_t n, float* gate, const float* up);

/// x[r] *= sigmoid(gate[r]) over rows of n; rows of `gate` are `pitch` values apart.
void device_sigmoid_gate(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* gate, int64_t pitch,
                         float* x);

/// x += factor y over n values
void device_add(gpu::StreamHandle stream, int64_t n, float* x, const float* y, float factor = 1);

/// x *= *factor over n values; the factor is in device memory
void device_scale(gpu::StreamHandle stream, int64_t n, float* x, const float* factor);

/// x = cap tanh(x / cap) over n values
void device_soft_cap(gpu::StreamHandle stream, int64_t n, float* x, float cap);

/// x[r] += factor y[r] / sqrt(mean(y[r]^2) + eps) * weight over rows of n
void device_add_normed(gpu::StreamHandle stream, int64_t n_rows, int64_t n, float* x, const float* y,
                       const float* weight, float eps, float factor);

/// x[r] += bias over rows of n
void device_add_bias(gpu::StreamHandle stream, int64_t n_rows, int64_t n, float* x, const float* bias);

/// y [n_rows, n] = columns of x, whose rows are `pitch` values apart.
void device_copy_columns(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, int64_t pitch, float* y);

/// y[r][i] = x[r][order[i]] over rows of n.
void device_sort_columns(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const int32_t* order, const float* x,
                         float* y);

/// y[i] = x[rows[i]] over rows of n.
void device_gather_rows(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const int32_t* rows, const float* x,
                        float* y);

}  // namespace ridge
