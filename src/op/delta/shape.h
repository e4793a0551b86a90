// Sizes of mixers with states: the gated delta rule (delta.h) and Mamba2 (mamba.h).
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace ridge {

/// Sizes of one layer of the gated delta rule.
struct DeltaShape {
  int n_key_heads = 0;
  int n_value_heads = 0;  ///< a multiple of n_key_heads
  int key_dim = 0, value_dim = 0;
  int kernel = 0;           ///< tokens that a row of the convolution sees, its own among them
  bool keys_cycle = false;  ///< value head i reads key head i mod n_key_heads; else i / (n_value_heads / n_key_heads)

  RIDGE_HD int64_t keys() const { return int64_t(n_key_heads) * key_dim; }
  RIDGE_HD int64_t values() const { return int64_t(n_value_heads) * value_dim; }
  /// Columns of q, k and v together, which go through the convolution.
  RIDGE_HD int64_t channels() const { return 2 * keys() + values(); }
  /// float32 values that a sequence remembers: a matrix [key_dim, value_dim] for every value head, then the last
  /// [kernel - 1, channels] inputs of the convolution. All zero at the start.
  RIDGE_HD int64_t state_values() const { return values() * key_dim + (kernel - 1) * channels(); }
  RIDGE_HD int key_head(int value_head) const {
    return keys_cycle ? value_head % n_key_heads : value_head / (n_value_heads / n_key_heads);
  }
};

/// Sizes of one layer of Mamba2.
struct MambaShape {
  int n_heads = 0, head_dim = 0;
  int n_groups = 0;  ///< divides n_heads: heads of a group, one behind the other, share B and C
  int state_dim = 0;
  int kernel = 0;  ///< tokens that a row of the convolution sees, its own among them

  RIDGE_HD int64_t inner() const { return int64_t(n_heads) * head_dim; }
  /// Columns of x, B and C together, which go through the convolution.
  RIDGE_HD int64_t channels() const { return inner() + 2 * int64_t(n_groups) * state_dim; }
  /// Columns of the input projection: z, then the channels, then dt of each head.
  RIDGE_HD int64_t columns() const { return inner() + channels() + n_heads; }
  /// float32 values that a sequence remembers: a matrix [state_dim, head_dim] a head, then the last
  /// [kernel - 1, channels] inputs of the convolution. All zero at the start.
  RIDGE_HD int64_t state_values() const {
    return inner() * state_dim + int64_t(kernel > 0 ? kernel - 1 : 0) * channels();
  }
};

}  // namespace ridge
