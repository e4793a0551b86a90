// The element-wise ops of norm_rope.h on the device: same definitions, all pointers in device memory.
#pragma once

#include <cstdint>

#include "gpu/device.h"

namespace ridge {

/// y[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight over rows of n; y may be x.
void device_rms_norm(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, const float* weight,
                     float eps, float* y);

/// Cosines and sines of positions first .. first + n_tokens - 1, [n_tokens, n_pairs] each, times `magnitude`.
void device_rope_tables(gpu::StreamHandle stream, int first, int n_tokens, int n_pairs, const double* frequency,
                        float magnitude, float* cosines, float* sines);

/// Rotates every head of x [n_seq, n_tokens, n_heads, head_dim]; token t of each sequence uses row t of the tables.
/// Pair i is elements (2i, 2i + 1), or (i, i + n_pairs) when `halves`.
void device_apply_rope(gpu::StreamHandle stream, int n_seq, int n_tokens, int n_heads, int head_dim, int n_pairs,
                       bool halves, const float* cosines, const float* sines, float* x);

/// gate = silu(gate) * up over n values
void device_swiglu(gpu::StreamHandle stream, int64_t n, float* gate, const float* up);

/// gate = max(gate, 0)^2 * up over n values, equal to relu2_glu bit for bit; a NaN stays one
void device_relu2_glu(gpu::StreamHandle stream, int64_t n, float* gate, const float* up);

/// x += y over n values
void device_add(gpu::StreamHandle stream, int64_t n, float* x, const float* y);

/// x[r] += bias over rows of n
void device_add_bias(gpu::StreamHandle stream, int64_t n_rows, int64_t n, float* x, const float* bias);

/// y [n_rows, n] = columns of x, whose rows are `pitch` values apart.
void device_copy_columns(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, int64_t pitch, float* y);

/// y[i] = x[rows[i]] over rows of n.
void device_gather_rows(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const int32_t* rows, const float* x,
                        float* y);

}  // namespace ridge
