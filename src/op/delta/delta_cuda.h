// The gated delta rule of delta.h on a device: same definitions, all pointers in device memory.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "op/cache/states.h"
#include "op/cache/step_rows.h"
#include "op/delta/shape.h"

namespace ridge {

/// DeltaShape::key_dim, value_dim and kernel of layers that a device runs, at most.
inline constexpr int kMostDeltaKeys = 256;
inline constexpr int kMostDeltaValues = 256;
inline constexpr int kMostDeltaTaps = 6;

/// Tokens of a chunk. Sequences with as many new tokens or more go through their states chunk by chunk (chunks_cuda.h),
/// others token by token.
inline constexpr int kDeltaChunk = 32;
inline constexpr int64_t kDeltaChunkFloats = 2144;  ///< scratch of a chunk and a value head

/// Rows [first, first + n) of a step's matrices are the new tokens of the sequence in `slot`. Without rows nothing is
/// done. 32 bytes, read in two pieces.
struct alignas(16) DeltaSpan {
  int32_t first = 0, n = 0, slot = 0;
  int32_t chunk = -1;  ///< number of its first chunk in the step; below 0: token by token
  int32_t row = 0;     ///< number of its first token in the step's list of rows
  int32_t n_past = 0;  ///< tokens before them; of slots with a history
  int32_t padding[2] = {};

  RIDGE_HD StatePath path(const LayerStates& states) const { return {states, slot, n_past, n}; }
  bool operator==(const DeltaSpan&) const = default;
};

struct DeviceDelta {
  DeltaShape shape;
  const float* conv = nullptr;     ///< [kernel, channels]
  const float* decay = nullptr;    ///< [n_value_heads]
  const float* dt_bias = nullptr;  ///< [n_value_heads]
  const float* norm = nullptr;     ///< [value_dim]
  float norm_eps = 0;
  const DeltaSpan* spans = nullptr;
  int n_spans = 0;
  int most = 0;        ///< rows of one span, at most
  LayerStates states;  ///< of state_values each, read and written
  /// Matrices [rows of the step]: qkv [channels]; z [values]; a, b [n_value_heads]
  const float* qkv = nullptr;
  float* z = nullptr;  ///< read and written: silu(z) times the rule's output, normed over each head
  const float* a = nullptr;
  const float* b = nullptr;
  bool overlap = false;  ///< programmatic dependent launch, without chunks
  // Fields for spans with chunks; `out` is for all spans.
  int n_chunked = 0;        ///< how many there are
  int shared_bytes = 0;     ///< that a block may have; 0: what the device gives
  float* mixed = nullptr;   ///< [rows of the step, channels]: qkv after the convolution and silu
  float* out = nullptr;     ///< [rows of the step, values]: of all spans what the rule gives
  float* chunks = nullptr;  ///< [chunks of the step, n_value_heads, kDeltaChunkFloats], aligned to 16 bytes
};
/// Sets n_past of the spans from the positions of their first tokens, which only the device may know.
void device_place_spans(gpu::StreamHandle stream, DeltaSpan* spans, int n_spans, const StepRow* rows);

/// Two launches for the spans that go token by token, five for those with chunks. Token by token, results are the same
/// bits however a prompt is cut and whatever else is in the step; by chunks they are near those.
void device_gated_delta(gpu::StreamHandle stream, const DeviceDelta& d);

}  // namespace ridge
