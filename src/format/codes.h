// What several weight encoders share: rounding a float to a code, whatever the float is.
#pragma once

namespace ridge {

/// `x` rounded to the nearest integer and clamped to [low, high]; NaN gives low.
inline int nearest_code(float x, int low, int high) {
  if (!(x > float(low))) return low;
  if (x >= float(high)) return high;
  return int(x - float(low) + 0.5f) + low;
}

/// 1 / scale, or 0 where the reciprocal would not be a finite float.
inline float safe_inverse(float scale) { return scale > 1e-38f || scale < -1e-38f ? 1.0f / scale : 0.0f; }

}  // namespace ridge
