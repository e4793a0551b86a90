// Mamba2 of mamba.h on a device: same definitions, all pointers in device memory.
#pragma once

#include "op/delta/delta_cuda.h"
#include "op/delta/shape.h"

namespace ridge {

/// Whether a device runs layers of these sizes: a block holds the matrix of a head in registers.
bool can_run_mamba(const MambaShape& shape);

inline constexpr int64_t kMambaChunkFloats = 1120;  ///< scratch of a chunk of kDeltaChunk tokens and a head

struct DeviceMamba {
  MambaShape shape;
  const float* conv = nullptr;       ///< [kernel, channels]
  const float* conv_bias = nullptr;  ///< [channels]
  const float* decay = nullptr;      ///< [n_heads]
  const float* dt_bias = nullptr;    ///< [n_heads]
  const float* d = nullptr;          ///< [n_heads]
  const float* norm = nullptr;       ///< [inner]
  float norm_eps = 0;
  const DeltaSpan* spans = nullptr;
  int n_spans = 0;
  int most = 0;               ///< rows of one span, at most
  int64_t n_rows = 0;         ///< of the step
  LayerStates states;         ///< of state_values each, read and written
  const float* in = nullptr;  ///< [rows of the step, columns]
  float* mixed = nullptr;     ///< [rows of the step, channels]: behind the convolution and silu; aligned to 16 bytes
  float* out = nullptr;       ///< [rows of the step, inner]: silu(z) times what the matrices give, normed over a group
  int n_chunked = 0;          ///< spans that have chunks (mamba_chunks_cuda.h)
  int shared_bytes = 0;       ///< that a block may have; 0: what the device gives
  float* chunks = nullptr;    ///< [chunks of the step, n_heads, kMambaChunkFloats], aligned to 16 bytes
};
/// Three launches, or four or five with chunks. Token by token, results are the same bits however a prompt is cut; by
/// chunks they are near those.
void device_mamba(gpu::StreamHandle stream, const DeviceMamba& m);

}  // namespace ridge
