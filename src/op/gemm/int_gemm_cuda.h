// GEMMs of many tokens with integer weights (int_weights_cuda.h) on tensor cores: prompts, and decode of more
// sequences than one pass of device_int_gemv takes.
//
// int4_g128  A weight is code * scale rounded to f16, an activation x s rounded to f16. s is a power of two for
//            each token that brings its largest value near 2^14: relative errors of at most 2^-11 each (2^-25 of s x
//            and of a weight, where those are larger). Sums are float32. Weights of 65520 and more become infinite.
// ternary    The matmul of op/gemv/ternary.h bit for bit, as device_int_gemv makes it.
// Sums are added in an order that depends on the shape and the number of tokens, never on timing. A token with a NaN or
// an infinity gives NaN everywhere, the others do not notice.
#pragma once

#include "op/gemv/int_gemv_cuda.h"

namespace ridge {

/// Area that a block sums at a time: 128 rows times 64 tokens, 128 times 128, 256 times 128; by warpgroups, for
/// int4_g128 where gpu::device_has_warpgroups(), 256 rows times 32, 64 or 128. Tests and measurements may choose.
enum class IntArea : uint8_t { any, small, middle, large, wide32, wide64, wide128 };

struct IntGemmCall {
  int64_t n_tokens = 0;
  const float* x = nullptr;            ///< [n_tokens, n_in], aligned to 16 bytes
  const float* norm_weight = nullptr;  ///< [n_in], aligned to 16 bytes: x is RMS-normalised first. May be null
  float norm_eps = 0;
  const float* bias = nullptr;  ///< [n_out of all matrices]; may be null, and is with gated weights
  IntOutput output = IntOutput::store;
  int n_parts = 1;                    ///< outputs, one for each matrix or one for them all; 1 with gated weights
  int64_t n_out[kMostIntParts] = {};  ///< of each, IntWeights::n_out together
  float* y[kMostIntParts] = {};       ///< [n_tokens, n_out] of each
  int n_blocks = 0;                   ///< of the launch; 0 is one for each multiprocessor
  IntArea area = IntArea::any;
  int cluster = 0;       ///< blocks that share an area of wide32 or wide64, 2 to 8; 1: none do; 0: chosen
  bool overlap = false;  ///< programmatic dependent launch
};

/// What a GEMM with IntArea::any takes on this device.
IntScratchBytes int_gemm_scratch_bytes(const IntWeights& w, int64_t n_tokens);

/// Queues two launches, x in the order of fragments and the GEMM. Throws Error(failure) for operands that do not fit
/// together. A block asks for nearly all shared memory that Hopper has; Error on devices with less.
void device_int_gemm(gpu::StreamHandle stream, const IntWeights& w, const IntGemmCall& call, IntScratch& scratch);

}  // namespace ridge
