// Mamba2: a state of fixed size in place of a cache, which decays by a factor a head and token (arXiv 2405.21060).
#pragma once

#include <span>

#include "base/view.h"
#include "op/cache/states.h"
#include "op/cache/tiles.h"
#include "op/cpu.h"
#include "op/delta/shape.h"

namespace ridge {

/// One layer of a step. For every token in turn and every head, S being the head's matrix:
///   x B C = silu(causal convolution of their columns + bias);  dt = softplus(dt + dt_bias)
///   S *= exp(decay dt);  S += B (dt x)^T;  out = S^T C + d x
struct Mamba {
  MambaShape shape;
  const float* conv = nullptr;       ///< [kernel, channels], the last row on the token itself
  const float* conv_bias = nullptr;  ///< [channels]
  const float* decay = nullptr;      ///< [n_heads], negative
  const float* dt_bias = nullptr;    ///< [n_heads]
  const float* d = nullptr;          ///< [n_heads]
  std::span<const KvSpan> spans;     ///< first_row, n_rows, n_past and slot count here
  LayerStates states;                ///< of state_values each, read and written
  View2<float> in;                   ///< [n, columns]; its channels are overwritten
  View2<float> out;                  ///< [n, inner]
};
/// A token's results are the same bits however a prompt is cut: tokens go through the state one by one.
void mamba2(CpuContext& context, const Mamba& mamba);

}  // namespace ridge
