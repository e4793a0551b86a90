// Attention of many queries a sequence on tensor cores: device_attn()'s result with rows, queries and weights rounded
// to halves, sums in float.
//
// Queries of all heads that share a kv head are the rows of one product, token by token; a block takes up to 256 of
// them and walks over the keys 64 (or 32) at a time with a running softmax. Where some of a block's queries see a
// position coded and others exact, the tile is read once for each pair of sources (K, V) and masked: every query meets
// every position once.
//
// Against exact arithmetic on the rows as given, u = 2^-11:
// - a score is off by at most (planes == 1 ? u : u^2) + (float rows ? u : 0) times scale sum |q k|: f16 rows are exact;
// - an output by at most twice the largest error of a score (relative, to first order) plus u (weights) plus
//   (float rows ? u : 0), times the weighted mean of |v|.
// Rows beyond 65504 become infinite, and rows and scaled queries below 2^-14 are rounded to multiples of 2^-24. Sums on
// tensor cores add about 2^-22 a term. A sequence's result has the same bits alone and beside others.
#pragma once

#include "op/attn/attn_cuda.h"

namespace ridge {

struct PrefillPlan {
  int planes = 1;  ///< halves a query is held in: 1 (11 bits) or 2 (22 bits; scores cost twice as much)
  int warps = 0;   ///< of a block, 4 or 8 (8: planes == 1 only); 0 lets the kernel choose
};

/// Null when there is a kernel for rows of head_dim values of value_bytes (2: f16, 4: float) on the current device,
/// else why not: devices with less than 160 KB of shared memory a block lack some.
const char* prefill_attn_unsupported(int head_dim, int value_bytes);

/// Rows, queries and outputs start at multiples of 16 bytes; n_heads is a multiple of n_kv_heads. Throws Error(failure)
/// for what is not supported.
void prefill_attn(gpu::StreamHandle stream, const DeviceAttnOver<float>& a, const PrefillPlan& plan = {});
/// Rows in f16.
void prefill_attn(gpu::StreamHandle stream, const DeviceAttnOver<uint16_t>& a, const PrefillPlan& plan = {});

}  // namespace ridge
