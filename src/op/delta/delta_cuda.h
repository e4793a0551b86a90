// The gated delta rule of delta.h on a device: same definitions, all pointers in device memory.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "op/delta/shape.h"

namespace ridge {

/// DeltaShape::key_dim of layers that a device runs, at most.
inline constexpr int kMostDeltaKeys = 256;

/// Tokens of a chunk. Sequences with as many new tokens or more go through their states chunk by chunk (chunks_cuda.h),
/// others token by token.
inline constexpr int kDeltaChunk = 32;
inline constexpr int64_t kDeltaChunkFloats = 2144;  ///< room of a chunk and a value head

/// Rows [first, first + n) of a step's matrices are the new tokens of the sequence in `slot`. Without rows nothing is
/// done. 16 bytes, read in one piece.
struct alignas(16) DeltaSpan {
  int32_t first = 0, n = 0, slot = 0;
  int32_t chunk = -1;  ///< number of its first chunk in the step; below 0: token by token

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
  int n_chunked = 0;        ///< spans with chunks
  int shared_bytes = 0;     ///< that a block may have; 0: what the device gives
  float* chunks = nullptr;  ///< [chunks of the step, n_value_heads, kDeltaChunkFloats], aligned to 16 bytes
};
/// Two launches, or up to five with chunks. Token by token, results are the same bits however a prompt is cut and whatever
/// else is in the step; by chunks they are near those.
void device_gated_delta(gpu::StreamHandle stream, const DeviceDelta& d);

/// z[r] = silu(z[r]) * x[r] / sqrt(mean(x[r]^2) + eps) * weight over rows of n
void device_normed_gate(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, const float* weight,
                        float eps, float* z);

}  // namespace ridge
