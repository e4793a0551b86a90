// Integers that stand for the levels of rotor formats where a cache meets integer dot products: on the CPU, and
// rotor-3's on a device too (tile_order.h).
#pragma once

namespace ridge {

/// level(code) is near of(code) * kUnit; kError is the root mean square of the difference, each level weighted by
/// how often a normal value takes it (the levels' own is nearly 1). Found by trying every size of the largest integer:
/// rotor-3 keeps 1/22000 of the quantiser's squared error and the worst level is off by 0.24 %, rotor-4 1/940 and 2 %.
template <int kBits>
struct IntLevels;
template <>
struct IntLevels<3> {
  static constexpr int kUpper[4] = {13, 40, 71, 114};
  static constexpr float kUnit = 0.01890110956948744f;
  static constexpr double kError = 0.00126;
  static constexpr int of(int code) { return code < 4 ? -kUpper[3 - code] : kUpper[code - 4]; }
};
template <>
struct IntLevels<4> {
  static constexpr int kUpper[8] = {5, 15, 25, 36, 48, 62, 79, 104};
  static constexpr float kUnit = 0.026168606450098945f;
  static constexpr double kError = 0.00318;
  static constexpr int of(int code) { return code < 8 ? -kUpper[7 - code] : kUpper[code - 8]; }
};

}  // namespace ridge
