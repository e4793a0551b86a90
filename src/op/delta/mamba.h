// Mamba2: a state of fixed size in place of a cache, which decays by a factor a head and token (arXiv 2405.21060).
#pragma once

#include <span>

#include "base/view.h"
#include "op/cache/states.h"
#include "op/cache/tiles.h"
#include "op/cpu.h"

namespace ridge {

/// Sizes of one layer.
struct MambaShape {
  int n_heads = 0, head_dim = 0;
  int n_groups = 0;  ///< divides n_heads: heads of a group, one behind the other, share B and C
  int state_dim = 0;
  int kernel = 0;  ///< tokens that a row of the convolution sees, its own among them

  int64_t inner() const { return int64_t(n_heads) * head_dim; }
  /// Columns of x, B and C together, which go through the convolution.
  int64_t channels() const { return inner() + 2 * int64_t(n_groups) * state_dim; }
  /// Columns of the input projection: z, then the channels, then dt of each head.
  int64_t columns() const { return inner() + channels() + n_heads; }
  /// float32 values that a sequence remembers: a matrix [state_dim, head_dim] a head, then the last
  /// [kernel - 1, channels] inputs of the convolution. All zero at the start.
  int64_t state_values() const { return inner() * state_dim + int64_t(kernel > 0 ? kernel - 1 : 0) * channels(); }
};

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
