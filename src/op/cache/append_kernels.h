// The ways of append_cuda.h: tiles in the order of tensor cores, and tiles of rows.
#pragma once

#include "op/cache/append_cuda.h"

namespace ridge {

void append_tiles(gpu::StreamHandle stream, const DeviceAppend& a);
void append_rows(gpu::StreamHandle stream, const DeviceAppend& a);
void encode_leaving_tiles(gpu::StreamHandle stream, const LeavingTiles& a);
void encode_leaving_rows(gpu::StreamHandle stream, const LeavingTiles& a);

}  // namespace ridge
