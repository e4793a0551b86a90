// Scores of rows of logits for quality runs, computed where the logits are.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "op/score/row_score.h"

namespace ridge {

/// Scores rows of `candidate` [n_rows, vocab_size] against those of `base` (may be null); targets [n_rows] are valid
/// ids. Sums in double. All pointers in device memory.
void device_score(gpu::StreamHandle stream, int64_t n_rows, int vocab_size, const float* base, const float* candidate,
                  const int32_t* targets, RowScore* scores);

}  // namespace ridge
