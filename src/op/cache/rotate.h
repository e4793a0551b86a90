// The arithmetic of the rotations (rotation.h), one definition for host and device.
#pragma once

#include "base/host_device.h"
#include "format/kv_format.h"

namespace ridge {

/// Width of the Walsh-Hadamard transform that begins at an element: the largest power of two that fits into the rest of
/// the row. 64 is one part, 96 is 64 + 32, 192 is 128 + 64, 576 is 512 + 64.
RIDGE_HD constexpr int hadamard_part(int head_dim, int first) {
  int part = 1;
  while (2 * part <= head_dim - first) part *= 2;
  return part;
}

/// A prepared rotation, pointing at its table: planar, cos and sin of each pair; hadamard, +-1 / sqrt(part) of each
/// element.
struct RotationView {
  Rotation kind = Rotation::none;
  int head_dim = 0;
  const float* table = nullptr;  // [head_dim]

  /// row <- R row, [head_dim]
  RIDGE_HD void forward(float* row) const {
    if (kind == Rotation::planar) {
      for (int i = 0; i < head_dim; i += 2) {
        const float c = table[i], s = table[i + 1], a = row[i], b = row[i + 1];
        row[i] = a * c - b * s;
        row[i + 1] = a * s + b * c;
      }
    } else if (kind == Rotation::hadamard) {
      for (int i = 0; i < head_dim; ++i) row[i] *= table[i];
      transform(row);
    }
  }
  /// row <- R^T row
  RIDGE_HD void backward(float* row) const {
    if (kind == Rotation::planar) {
      for (int i = 0; i < head_dim; i += 2) {
        const float c = table[i], s = table[i + 1], a = row[i], b = row[i + 1];
        row[i] = a * c + b * s;
        row[i + 1] = b * c - a * s;
      }
    } else if (kind == Rotation::hadamard) {
      transform(row);
      for (int i = 0; i < head_dim; ++i) row[i] *= table[i];
    }
  }

 private:
  /// The Walsh-Hadamard butterflies of every part, without their norm.
  RIDGE_HD void transform(float* row) const {
    for (int first = 0, part; first < head_dim; first += part) {
      part = hadamard_part(head_dim, first);
      for (int half = 1; half < part; half *= 2)
        for (int start = first; start < first + part; start += 2 * half) {
          float* __restrict low = row + start;
          float* __restrict high = row + start + half;
          for (int i = 0; i < half; ++i) {
            const float a = low[i], b = high[i];
            low[i] = a + b;
            high[i] = a - b;
          }
        }
    }
  }
};

}  // namespace ridge
