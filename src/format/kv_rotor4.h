// rotor-4: rotor-3 with the 16 Lloyd-Max levels of a standard normal, 0.128395 to 2.732590 on either side; 4.125 bits
// per value at head_dim 128.
//
// Layout: D / 2 bytes of codes, code k at bits 4k .. 4k+3 (even codes in low nibbles), then the fp16 scale. Everything
// else as rotor-3 (format/kv_rotor.h). Source: our own; the levels are those of the optimal quantiser.
#pragma once

#include "format/kv_rotor.h"

namespace ridge {

struct KvRotor4 : RotorRow<4> {
  static constexpr const char* kName = "rotor-4";
  static constexpr KvPolicy kPolicy = kRotorPolicy;
};

}  // namespace ridge
