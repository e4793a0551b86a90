// Matmuls with weights in bricks on f16 tensor cores, of any number of rows; the kernel here is the one of
// many: prefill, and decode of 5 and more sequences.
#pragma once

#include <cstdint>

#include "op/gemv/bricks_cuda.h"
#include "op/gemv/f16_gemv_cuda.h"

namespace ridge {

/// Bytes of scratch of a call; none up to 4 tokens. One scratch serves all matmuls of a stream, which use it one after
/// another; it starts as zeros and is never cleared: each matmul leaves the counters at its start zero.
int64_t brick_scratch_bytes(const BrickMatrix& w, const BrickCall& call);

/// y = x W^T for every part, with what the call asks for around it. x is split in two planes: x s = hi + lo, where s is
/// a power of two that brings the largest value (up to 4 tokens: of those that a warp needs) near 2^14; both are f16
/// (bfloat16 for bf16 weights), and |x s - hi - lo| <= 2^-22 |x s| + 2^-25 (2^-16 |x s|). Weights are their exact
/// codes; sums of products are scaled in float. The same call gives the same bits every time; other n_tokens or
/// n_blocks may round sums differently. A token with a NaN or infinity gives NaNs or infinities, the others do not
/// notice.
///
/// Up to 4 tokens run device_few_f16_gemv(), more run device_tensor_gemm() with two planes.
void device_f16_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call, const gpu::Buffer& scratch);

/// Tokens of a call at most: an area of the result has a counter.
int64_t most_brick_tokens(const BrickMatrix& w);
/// Bytes of scratch, as brick_scratch_bytes() has it.
int64_t tensor_gemm_scratch_bytes(const BrickMatrix& w, const BrickCall& call, int planes);

/// y = x W^T for any number of tokens: what device_f16_gemv computes, with one or two planes of x. With one plane x s
/// is rounded to f16 (bfloat16 for bf16 weights): |error| <= 2^-11 |x s| + 2^-25 (2^-8 |x s|), and half as many
/// products. Weights are exact with either. A block asks for nearly all shared memory that Hopper has; Error on devices
/// with less.
void device_tensor_gemm(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call, int planes,
                        const gpu::Buffer& scratch);

/// GEMMs by warpgroups (gpu/warpgroup.h), of every format but bf16.
inline constexpr int64_t kFewestWideTokens = 17;
bool has_wide_matmul(const BrickMatrix& w, int64_t n_tokens);
int64_t wide_gemm_scratch_bytes(const BrickMatrix& w, const BrickCall& call);
/// y = x W^T in f16: x s as with one plane, and weights rounded to f16 (f16 weights are exact). So an error of at
/// most 2^-11 of each product from x, as much from the weight, and where the format has minima 2^-11 of the minimum.
void device_wide_gemm(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call,
                      const gpu::Buffer& scratch);

/// y = x W^T with one plane of x, as models run it for many tokens: device_wide_gemm() where there is one, else
/// device_tensor_gemm().
int64_t f16_gemm_scratch_bytes(const BrickMatrix& w, const BrickCall& call);
void device_f16_gemm(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call, const gpu::Buffer& scratch);

}  // namespace ridge
