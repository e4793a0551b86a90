#include "op/kv_append/rotation.h"

#include <cmath>
#include <numbers>

#include "base/rng.h"

namespace ridge {
namespace {

uint32_t layer_hash(int layer, int i) { return splitmix32(uint32_t(layer) * 0x9E3779B9u + uint32_t(i)); }

}  // namespace

double planar_angle(int layer, int pair) { return 2 * std::numbers::pi * layer_hash(layer, pair) * 0x1p-32; }

RowRotation::RowRotation(Rotation kind, int layer, int head_dim) : kind_(kind), head_dim_(head_dim) {
  if (kind == Rotation::planar) {
    RIDGE_CHECK(head_dim % 2 == 0, "planar rotation of odd head_dim {}", head_dim);
    for (int i = 0; i < head_dim / 2; ++i) {
      cos_sin_.push_back(float(std::cos(planar_angle(layer, i))));
      cos_sin_.push_back(float(std::sin(planar_angle(layer, i))));
    }
  } else if (kind == Rotation::hadamard) {
    part_ = head_dim & -head_dim;
    const float norm = float(1.0 / std::sqrt(double(part_)));
    for (int i = 0; i < head_dim; ++i) signs_.push_back(layer_hash(layer, i) >> 31 ? -norm : norm);
  }
}

void RowRotation::transform(float* row) const {
  for (int first = 0; first < head_dim_; first += part_)
    for (int half = 1; half < part_; half *= 2)
      for (int start = first; start < first + part_; start += 2 * half) {
        float* __restrict low = row + start;
        float* __restrict high = row + start + half;
        for (int i = 0; i < half; ++i) {
          const float a = low[i], b = high[i];
          low[i] = a + b;
          high[i] = a - b;
        }
      }
}

void RowRotation::forward(float* row) const {
  if (kind_ == Rotation::planar) {
    for (int i = 0; i < head_dim_; i += 2) {
      const float c = cos_sin_[size_t(i)], s = cos_sin_[size_t(i) + 1], a = row[i], b = row[i + 1];
      row[i] = a * c - b * s;
      row[i + 1] = a * s + b * c;
    }
  } else if (kind_ == Rotation::hadamard) {
    for (int i = 0; i < head_dim_; ++i) row[i] *= signs_[size_t(i)];
    transform(row);
  }
}

void RowRotation::backward(float* row) const {
  if (kind_ == Rotation::planar) {
    for (int i = 0; i < head_dim_; i += 2) {
      const float c = cos_sin_[size_t(i)], s = cos_sin_[size_t(i) + 1], a = row[i], b = row[i + 1];
      row[i] = a * c + b * s;
      row[i + 1] = b * c - a * s;
    }
  } else if (kind_ == Rotation::hadamard) {
    transform(row);
    for (int i = 0; i < head_dim_; ++i) row[i] *= signs_[size_t(i)];
  }
}

Result<Rotation> find_rotation(std::string_view name) {
  for (const Rotation rotation : {Rotation::none, Rotation::planar, Rotation::hadamard})
    if (rotation_name(rotation) == name) return rotation;
  return fail(ErrorKind::usage, "unknown rotation '{}' (there are: none, planar, hadamard)", name);
}

std::string_view rotation_name(Rotation rotation) {
  switch (rotation) {
    case Rotation::none: return "none";
    case Rotation::planar: return "planar";
    case Rotation::hadamard: return "hadamard";
  }
  return "?";
}

}  // namespace ridge
