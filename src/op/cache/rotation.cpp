#include "op/cache/rotation.h"

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
      table_.push_back(float(std::cos(planar_angle(layer, i))));
      table_.push_back(float(std::sin(planar_angle(layer, i))));
    }
  } else if (kind == Rotation::hadamard) {
    for (int first = 0; first < head_dim; first = int(table_.size())) {
      const int part = hadamard_part(head_dim, first);
      const float norm = float(1.0 / std::sqrt(double(part)));
      for (int i = first; i < first + part; ++i) table_.push_back(layer_hash(layer, i) >> 31 ? -norm : norm);
    }
  }
}

Result<Rotation> find_rotation(std::string_view name) {
  for (const Rotation rotation : {Rotation::none, Rotation::planar, Rotation::hadamard})
    if (rotation_name(rotation) == name) return rotation;
  return fail(ErrorKind::usage, "unknown rotation '{}' (there are: none, planar, hadamard)", name);
}

std::string_view rotation_name(Rotation rotation) {
  constexpr std::string_view kNames[] = {"none", "planar", "hadamard"};
  return kNames[size_t(rotation)];
}

}  // namespace ridge
