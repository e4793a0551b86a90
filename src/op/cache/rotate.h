// The arithmetic of the rotations (rotation.h), one definition for host and device.
#pragma once

#include "base/host_device.h"
#include "format/kv_format.h"

namespace ridge {

/// A prepared rotation, pointing at its table: planar, cos and sin of each pair; hadamard, +-1 / sqrt(part) of each
/// element.
struct RotationView {
  Rotation kind = Rotation::none;
  int head_dim = 0;
  int part = 1;                  // hadamard: width of one transform
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
    for (int first = 0; first < head_dim; first += part)
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
};

}  // namespace ridge
