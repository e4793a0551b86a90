// KV q8_0: the blocks of weight format q8_0 (fp16 scale and 32 signed bytes); 8.5 bits per value. The reference point
// for every compressed K. Codes, scale and error: format/q8_0.h, rows: format/kv_blocks.h.
#pragma once

#include "format/kv_blocks.h"
#include "format/q8_0.h"

namespace ridge {

struct KvQ8_0 : KvBlocks<Q8_0> {
  static constexpr const char* kName = "q8_0";
};

}  // namespace ridge
