// Copies of what every page, or every slot, of a cache has: one launch for all layers.
#pragma once

#include <cstdint>

#include "gpu/device.h"

namespace ridge {

/// An array on the device that has `bytes` (a multiple of 4) for every page or slot.
struct CachePart {
  void* base = nullptr;
  int64_t bytes = 0;
};
/// Number `to` of every part becomes number `from`; parts [n] in device memory.
void device_copy_parts(gpu::StreamHandle stream, const CachePart* parts, int n, int from, int to);
/// Number `at` of every part becomes zeros.
void device_clear_parts(gpu::StreamHandle stream, const CachePart* parts, int n, int at);

}  // namespace ridge
