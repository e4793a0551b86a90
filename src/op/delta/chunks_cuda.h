// The gated delta rule over a chunk of tokens at once, for prompts on a device. Mathematics:
//
// The rule of a value head, token by token (delta.h), with keep g_t, beta b_t and the state S [keys, values]:
//   u_t = b_t (v_t - g_t S_{t-1}^T k_t);   S_t = g_t S_{t-1} + k_t u_t^T;   out_t = S_t^T q_t
// Let c_t = g_1 ... g_t over the tokens of a chunk, and S the state in front of it. The second rule, used t times, is
//   S_t = c_t S + sum over i <= t of (c_t / c_i) k_i u_i^T
// In the first one, S_{t-1} written so gives a triangular system for the changes U = (u_1 ... u_C)^T:
//   (1 + A) U = R,   A_ti = b_t (c_t / c_i) <k_t, k_i> for i < t, else 0;   row t of R: b_t (v_t - c_t S^T k_t)
// Its inverse T = (1 + A)^-1 needs no state, so that all chunks of a prompt have theirs at once. (T is the UT transform
// of a product of Householder-like factors: 1 + A is unit lower triangular, and |T_ti| <= b_t <= 1.) Then, chunk by
// chunk:
//   U = T R;   out_t = c_t S^T q_t + sum over i <= t of P_ti u_i,  P_ti = (c_t / c_i) <q_t, k_i>
//   S <- c_C S + sum over i of (c_C / c_i) k_i u_i^T
// Quotients c_t / c_i are exp of a difference of sums of logarithms: at most 1, and nothing overflows or is lost to 0.
// A token that is missing in the last chunk has k = q = v = 0, b = 0 and g = 1, which changes nothing.
//
// Arithmetic: matmuls are of tensor cores over pairs of bfloat16, x = hi + lo to 2^-16 of it; hi hi + hi lo + lo hi is
// the product to 3 2^-16 of it at most. Sums and all else are floats. A token costs 6 keys values + 2 C (keys + values)
// flops a value head before that (C = 32); 7 keys values token by token. Of 128 x 128 a warp spends 324 tensor-core
// instructions on a chunk, for its 16 columns: at 7 cycles each some 70 cycles a token, 0.04 us at 1.75 GHz, for all
// heads at once. That is a prediction, not a measurement.
#pragma once

#include "op/delta/delta_cuda.h"

namespace ridge {

/// Whether layers of this shape can go by chunks.
bool has_delta_chunks(const DeltaShape& shape);
/// The spans that have chunks, behind the convolution, whose rows in d.mixed are overwritten. Three launches.
void device_delta_chunks(gpu::StreamHandle stream, const DeviceDelta& d);

}  // namespace ridge
