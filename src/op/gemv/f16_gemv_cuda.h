// Matmuls of float activations with weights in bricks (bricks_cuda.h) on f16 tensor cores: decode and
// small batches. op/gemm/tensor_gemm_cuda.h is the one for many rows.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "op/gemv/bricks_cuda.h"
#include "op/gemv/expert_packs.h"

namespace ridge {

/// One matmul. Every pointer is device memory.
struct BrickCall {
  int64_t n_tokens = 0;
  const float* x = nullptr;            ///< [n_tokens, n_in]
  const float* norm_weight = nullptr;  ///< [n_in]: x is RMS-normalised first, as device_rms_norm does; or nullptr
  float norm_eps = 0;
  const float* bias[kMostBrickParts] = {};  ///< [n_out] of each part, added to the result; or nullptr; not when paired
  bool residual = false;                    ///< the result is added to y; not when paired
  BrickGlu glu = BrickGlu::silu;            ///< for paired matrices: silu or relu2
  float* y[kMostBrickParts] = {};           ///< [n_tokens, n_out] of each part
  int n_blocks = 0;                         ///< of the launch; 0 is one for each multiprocessor
  bool overlap = false;  ///< programmatic dependent launch: weights are read while the grid before this one ends
};

/// The most tokens that device_few_f16_gemv() takes.
inline constexpr int kMostFewTokens = 4;

/// Computes device_f16_gemv() (op/gemm/tensor_gemm_cuda.h) for 1 to 4 tokens: streams the weights once past an x that
/// lies in shared memory. Needs no scratch.
void device_few_f16_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call);

/// Multiplies the packs' tokens, each with the bricks of its expert: `w` says what one expert is, its data holds all of
/// them one after another. biases [n_experts, n_out], or null: of each part, or of gate and of up. y [slots, n_out]: of
/// each part.
void device_expert_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const ExpertCall& call,
                        const float* const* biases, float* const* y);

/// The sum over a token's experts, as one GEMV: the rows of its experts lie one behind another, and so do its x,
/// each times its weight. `w` as above, of one part; bias [n_experts, n_out] or null.
void device_expert_sum_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const ExpertSumCall& call,
                            const float* bias);

}  // namespace ridge
