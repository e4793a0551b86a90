// The gated delta rule of delta.h on a device: same definitions, all pointers in device memory.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "op/delta/shape.h"

namespace ridge {

/// DeltaShape::key_dim of layers that a device runs, at most.
inline constexpr int kMostDeltaKeys = 256;

/// Rows [first, first + n) of a step's matrices are the new tokens of the sequence in `slot`. Without rows nothing is
/// done. 16 bytes, read in one piece.
struct alignas(16) DeltaSpan {
  int32_t first = 0, n = 0, slot = 0;

  bool operator==(const DeltaSpan&) const = default;
};

struct DeviceDelta {
  DeltaShape shape;
  const float* conv = nullptr;     ///< [kernel, channels]
  const float* decay = nullptr;    ///< [n_value_heads]
  const float* dt_bias = nullptr;  ///< [n_value_heads]
  const DeltaSpan* spans = nullptr;
  int n_spans = 0;
  int most = 0;             ///< rows of one span, at most
  float* states = nullptr;  ///< [n_slots, state_values], read and written
  /// Matrices [rows of the step]: qkv, mixed [channels]; a, b [n_value_heads]; out [values]
  const float* qkv = nullptr;
  const float* a = nullptr;
  const float* b = nullptr;
  float* mixed = nullptr;  ///< qkv after the convolution and silu
  float* out = nullptr;
};
/// Two launches. A token's results are the same bits however a prompt is cut and whatever else is in the step.
void device_gated_delta(gpu::StreamHandle stream, const DeviceDelta& d);

/// z[r] = silu(z[r]) * x[r] / sqrt(mean(x[r]^2) + eps) * weight over rows of n
void device_normed_gate(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, const float* weight,
                        float eps, float* z);

}  // namespace ridge
