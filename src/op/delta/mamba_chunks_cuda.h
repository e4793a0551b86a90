// Mamba2 over a chunk of tokens at once, for prompts on a device (the SSD form of arXiv 2405.21060). Mathematics:
//
// A head token by token (mamba.h), with a = decay dt_t and the state S [state_dim, head_dim]:
//   S_t = exp(a_t) S_{t-1} + B_t u_t^T,  u_t = dt_t x_t;   out_t = S_t^T C_t + d x_t
// Let l_t = a_1 + ... + a_t over the tokens of a chunk, and S the state in front of it. The first rule, used t times:
//   out_t = exp(l_t) S^T C_t + sum over i <= t of P_ti u_i + d x_t,   P_ti = exp(l_t - l_i) <C_t, B_i>
//   S <- exp(l_C) S + sum over i of exp(l_C - l_i) B_i u_i^T
// It is the chunked delta rule (chunks_cuda.h) without its triangular system: a token's change does not depend on the
// state. P needs no state, so that all chunks of a prompt have theirs at once. Every exponent is at most 0. A token
// that is missing in the last chunk has B = C = x = 0 and dt = 0, which changes nothing.
//
// Predicted for heads of 64 x 128, not measured: a warp spends 210 tensor-core instructions on a chunk of 32 tokens for
// its 16 columns. At 7 cycles each, some 46 cycles a token, 0.026 us at 1.75 GHz, for all heads at once. Token by token
// a block waits twice for its threads and once for memory: about 1 us a token.
#pragma once

#include "op/delta/mamba_cuda.h"

namespace ridge {

/// Whether layers of this shape can go by chunks.
bool has_mamba_chunks(const MambaShape& shape);
/// The spans that have chunks, behind the convolution, which leaves B and C in m.mixed as quads (chunk_products.h):
/// m.out is S^T C + d x. Two launches.
void device_mamba_chunks(gpu::StreamHandle stream, const DeviceMamba& m);

}  // namespace ridge
