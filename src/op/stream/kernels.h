// Kernels of each ISA for the table of streams.
#pragma once

#include "op/stream/stream.h"

namespace ridge {

extern const StreamKernels kStreamAvx2, kStreamAvx512, kStreamNeon;

}  // namespace ridge
