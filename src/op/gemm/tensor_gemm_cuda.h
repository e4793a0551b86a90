// Products of many rows with weights in bricks on half-precision tensor cores: prefill, and decode of 5 and more
// sequences.
#pragma once

#include <cstdint>

#include "op/gemv/bricks_cuda.h"
#include "op/gemv/half_gemv_cuda.h"

namespace ridge {

/// Bytes of scratch, as brick_scratch_bytes() has it.
int64_t tensor_gemm_scratch_bytes(const BrickMatrix& w, const BrickCall& call, int planes);

/// y = x W^T for any number of tokens: what device_half_gemv computes, with one or two planes of x. With one plane x s
/// is rounded to a half (bfloat16 for bf16 weights): |error| <= 2^-11 |x s| + 2^-25 (2^-8 |x s|), and half as many
/// products. Weights are exact with either. A block asks for nearly all shared memory that Hopper has; Error on devices
/// with less.
void device_tensor_gemm(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call, int planes,
                        const gpu::Buffer& scratch);

}  // namespace ridge
