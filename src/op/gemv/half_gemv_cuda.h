// Products of float activations with weights in bricks (bricks_cuda.h) on half-precision tensor cores: decode and
// small batches. op/gemm/tensor_gemm_cuda.h is the one for many rows.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "op/gemv/bricks_cuda.h"

namespace ridge {

/// What becomes of gate g and up u of a paired matrix: silu(g) u, or max(g, 0)^2 u.
enum class BrickGlu { silu, relu2 };

/// One product. Every pointer is device memory.
struct BrickCall {
  int64_t n_tokens = 0;
  const float* x = nullptr;            ///< [n_tokens, n_in]
  const float* norm_weight = nullptr;  ///< [n_in]: x is RMS-normalised first, as device_rms_norm does; or nullptr
  float norm_eps = 0;
  const float* bias[kMostBrickParts] = {};  ///< [n_out] of each part, added to the result; or nullptr; not when paired
  bool residual = false;                    ///< the result is added to y; not when paired
  BrickGlu glu = BrickGlu::silu;            ///< for paired matrices
  float* y[kMostBrickParts] = {};           ///< [n_tokens, n_out] of each part
  int n_blocks = 0;                         ///< of the launch; 0 is one for each multiprocessor
  bool overlap = false;  ///< programmatic dependent launch: weights are read while the grid before this one ends
};

/// Bytes of scratch of a call; none up to 4 tokens. One scratch serves all products of a stream, which use it one after
/// another; it starts as zeros and is never cleared: each product leaves the counters at its start zero.
int64_t brick_scratch_bytes(const BrickMatrix& w, const BrickCall& call);

/// y = x W^T for every part, with what the call asks for around it. x is split in two planes: x s = hi + lo, where s is
/// a power of two that brings the largest value (up to 4 tokens: of those that a warp needs) near 2^14; both are halves
/// (bfloat16 for bf16 weights), and |x s - hi - lo| <= 2^-22 |x s| + 2^-25 (2^-16 |x s|). Weights are their exact
/// codes; sums of products are scaled in float. The same call gives the same bits every time; other n_tokens or
/// n_blocks may round sums differently. A token with a NaN or infinity gives NaNs or infinities, the others do not
/// notice.
///
/// Up to 4 tokens run the kernel here, which streams the weights once past an x that lies in shared memory; more tokens
/// run device_tensor_gemm with two planes.
void device_half_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call,
                      const gpu::Buffer& scratch);

}  // namespace ridge
