// e4m3: floats of 8 bits, with a sign, 4 bits of exponent (bias 7) and 3 of fraction; no infinity. Codes 0x7F and 0xFF,
// which the specification calls NaN, are 480 and -480 here; what reads files refuses them. Source: OCP FP8, E4M3.
#pragma once

#include <algorithm>

#include "base/f16.h"

namespace ridge {

/// The fp16 number 2^-8 times the value of a code: exact, below the smallest normal codes too.
RIDGE_HD constexpr uint16_t e4m3_as_f16(int code) { return uint16_t((code & 0x80) << 8 | (code & 0x7F) << 7); }
RIDGE_HD constexpr float e4m3_value(int code) { return 256 * f16_to_f32(e4m3_as_f16(code)); }
/// The code nearest to x >= 0, which fp16 rounds first; 0x7F from 464 on.
inline int e4m3_nearest(float x) { return std::min((f32_to_f16(x / 256) + 0x40) >> 7, 0x7F); }
RIDGE_HD constexpr bool e4m3_is_nan(int code) { return (code & 0x7F) == 0x7F; }

}  // namespace ridge
