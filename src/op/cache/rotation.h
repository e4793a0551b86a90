// The orthogonal rotations R of cache space. One R per layer, shared by all positions and heads, so
// <R q, R k> = <q, k> and sum p R v = R sum p v: nothing is rotated back inside the attention loop.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "op/cache/rotate.h"

namespace ridge {

/// Angle of pair (2i, 2i + 1) of a layer under `planar`: 2 pi h / 2^32, h = splitmix32(layer * 0x9E3779B9 + i).
double planar_angle(int layer, int pair);

/// R of one layer, prepared for use.
///   planar    Givens rotations of pairs (2i, 2i+1) by planar_angle
///   hadamard  signs, then a normalised Walsh-Hadamard transform of each part (hadamard_part()); sign of element i is
///             the top bit of splitmix32(layer * 0x9E3779B9 + i)
class RowRotation {
 public:
  RowRotation(Rotation kind, int layer, int head_dim);

  void forward(float* row) const { view().forward(row); }    ///< row <- R row, [head_dim]
  void backward(float* row) const { view().backward(row); }  ///< row <- R^T row
  Rotation kind() const { return kind_; }
  std::span<const float> table() const { return table_; }
  RotationView view() const { return {kind_, head_dim_, table_.data()}; }

 private:
  Rotation kind_;
  int head_dim_;
  std::vector<float> table_;  // rotate.h
};

Result<Rotation> find_rotation(std::string_view name);
std::string_view rotation_name(Rotation rotation);

}  // namespace ridge
