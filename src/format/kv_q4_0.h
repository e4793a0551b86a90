// KV q4_0: the blocks of weight format q4_0 (fp16 scale and 32 nibbles); 4.5 bits per value. The value of largest
// magnitude of a block lands on -8. Codes, scale and error: format/q4_0.h, rows: format/kv_blocks.h.
#pragma once

#include "format/kv_blocks.h"
#include "format/q4_0.h"

namespace ridge {

struct KvQ4_0 : KvBlocks<Q4_0> {
  static constexpr const char* kName = "q4_0";
};

}  // namespace ridge
