// The gated delta rule: attention with a state of fixed size in place of a cache (Gated DeltaNet of Qwen3-Next and
// Qwen3.5).
#pragma once

#include <span>

#include "base/view.h"
#include "op/cache/states.h"
#include "op/cache/tiles.h"
#include "op/cpu.h"
#include "op/delta/shape.h"

namespace ridge {

/// One layer of a step. For every token in turn, S being the matrix of a value head and q, k those of its key head:
///   q k v = silu(causal convolution of qkv);  q, k = q / |q|, k / |k|;  q /= sqrt(key_dim)
///   S *= exp(decay softplus(a + dt_bias));  S += k (sigmoid(b) (v - S^T k))^T;  out = S^T q
struct Delta {
  DeltaShape shape;
  const float* conv = nullptr;     ///< [kernel, channels], the last row on the token itself
  const float* decay = nullptr;    ///< [n_value_heads], negative
  const float* dt_bias = nullptr;  ///< [n_value_heads]
  std::span<const KvSpan> spans;   ///< first_row, n_rows, n_past and slot count here
  LayerStates states;              ///< of state_values each, read and written
  View2<float> qkv;                ///< [n, channels]: all q, all k, all v; overwritten
  View2<const float> a, b;         ///< [n, n_value_heads]
  View2<float> out;                ///< [n, values]
};
/// A token's results are the same bits however a prompt is cut: tokens go through the state one by one.
void gated_delta(CpuContext& context, const Delta& delta);

/// One token through the matrix of one value head [key_dim, value_dim], from `before` to `state`, which may be one.
struct DeltaToken {
  int64_t key_dim, value_dim;
  float keep;          ///< what the state is multiplied by
  float beta;          ///< share of the change
  const float *q, *k;  ///< [key_dim], with their lengths already
  const float* v;      ///< [value_dim]
  const float* before;
  float* state;
  float* out;  ///< [value_dim]
};
using DeltaStep = void(const DeltaToken& d);
/// The kernels of a token, one an ISA.
struct DeltaVariant {
  std::string_view name;
  Isa isa;
  Support (*supports)();
  DeltaStep* step;
};
std::span<const DeltaVariant> delta_variants();

}  // namespace ridge
