// Rows of a weight matrix on a device, looked up by number: the embedding, in the bits of its file.
#pragma once

#include <cstdint>

#include "gpu/device.h"

namespace ridge {

struct Linear;  // op/linear.h

/// A row-major matrix [n_rows, n_cols] of any weight format, its blocks as in the file.
struct DeviceRows {
  gpu::Buffer blocks;
  int format = 0;  ///< row of weight_formats()
  int64_t n_rows = 0, n_cols = 0;
  float scale = 1;  ///< Linear::scale
};

/// Waits for the copy. Throws Error(failure) when the matrix has no rows, Error(no_memory).
DeviceRows upload_rows(const gpu::Stream& stream, const Linear& m);

/// x[i] = row tokens[i] of the table, times its scale: float32 [n, n_cols], the bits of WeightFormat::decode. Tokens
/// must be rows.
void device_embed(gpu::StreamHandle stream, int64_t n, const int32_t* tokens, const DeviceRows& table, float* x);

}  // namespace ridge
