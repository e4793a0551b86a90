// What the table of streams has of each ISA.
#pragma once

#include "op/stream/stream.h"

namespace ridge {

extern const StreamKernels kStreamAvx2, kStreamAvx512, kStreamNeon;

}  // namespace ridge
