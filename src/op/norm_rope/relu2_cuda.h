// The gated activation of BitNet b1.58 on the device: relu2_glu of norm_rope.h, equal to it bit for bit.
#pragma once

#include <cstdint>

#include "gpu/device.h"

namespace ridge {

/// gate = max(gate, 0)^2 * up over n values; a NaN stays one
void device_relu2_glu(gpu::StreamHandle stream, int64_t n, float* gate, const float* up);

}  // namespace ridge
