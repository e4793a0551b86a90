// rotor-3: rotated 3-bit KV codes, one fp16 scale per row; 3.125 bits per value at head_dim 128.
//
// u = x sqrt(D) / |x| is coded against the 8 Lloyd-Max levels of a standard normal: +-0.2451275, +-0.7560054,
// +-1.3439092, +-2.1519143; format/kv_rotor.h has the rules of scale and rounding, docs/formats/cache-space.md what
// happens to a row before. Layout: 3 D / 8 bytes of codes, code k at bits 3k .. 3k+2, then the scale. Source of the
// idea: PlanarQuant-3 in rocm-cpp, which has no scale and loses the signal (format/kv_rotor3u.h).
#pragma once

#include "format/kv_rotor.h"

namespace ridge {

struct KvRotor3 : RotorRow<3> {
  static constexpr const char* kName = "rotor-3";
  static constexpr KvPolicy kPolicy = kRotorPolicy;
};

}  // namespace ridge
