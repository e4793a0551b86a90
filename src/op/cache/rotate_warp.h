// The rotations (rotate.h) and the centre (tiles.h) of a row that a warp holds in registers, or in shared memory.
// Device code.
#pragma once

#include "gpu/launch.h"
#include "op/cache/rotate.h"
#include "op/cache/tiles.h"

namespace ridge {

/// What a lane needs of a rotation's table, loaded ahead of its use.
template <int kPer>
struct RotationRow {
  float a[kPer] = {}, b[kPer] = {};

  __device__ __forceinline__ RotationRow(const RotationView& r, int lane) {
    if (r.kind == Rotation::none) return;
    const bool pairs = r.kind == Rotation::planar;
    const float* const first = r.table + (pairs ? lane & ~1 : lane);
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      a[j] = first[32 * j];
      if (pairs) b[j] = first[32 * j + 1];
    }
  }
};

/// row <- R row, or R^T row when not `forward`: RotationView's operations in its order. Lane has channels lane + 32 j.
template <int kPer>
__device__ __forceinline__ void rotate_row(const RotationView& r, const RotationRow<kPer>& table, bool forward,
                                           int lane, float (&x)[kPer]) {
  if (r.kind == Rotation::hadamard) {
    if (forward)
#pragma unroll
      for (int j = 0; j < kPer; ++j) x[j] *= table.a[j];
    for (int half = 1; half < 32; half *= 2)  // head_dim is a power of two: one transform
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const float other = __shfl_xor_sync(gpu::kAllLanes, x[j], half);
        x[j] = lane & half ? other - x[j] : x[j] + other;
      }
#pragma unroll
    for (int half = 1; half < kPer; half *= 2)
#pragma unroll
      for (int j = 0; j < kPer; ++j)
        if (!(j & half)) {
          const float a = x[j], b = x[j + half];
          x[j] = a + b;
          x[j + half] = a - b;
        }
    if (!forward)
#pragma unroll
      for (int j = 0; j < kPer; ++j) x[j] *= table.a[j];
  } else if (r.kind == Rotation::planar) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int d = lane + 32 * j;
      const float c = table.a[j], s = forward ? table.b[j] : -table.b[j];
      const float other = __shfl_xor_sync(gpu::kAllLanes, x[j], 1);
      x[j] = d & 1 ? other * s + x[j] * c : x[j] * c - other * s;
    }
  }
}
template <int kPer>
__device__ __forceinline__ void rotate_row(const RotationView& r, bool forward, int lane, float (&x)[kPer]) {
  rotate_row(r, RotationRow<kPer>(r, lane), forward, lane, x);
}

/// The centre of a tile of a sequence's kv head.
struct TileCentre {
  const KvTiles& side;
  int slot, head, tile;
};
/// KvTiles::move_row() by a warp: row [head_dim] in memory that it shares, whole before and after.
__device__ inline void move_shared_row(const TileCentre& by, float sign, int lane, float* row) {
  if (!by.side.centre) return;
  const float* const centre = by.side.centre_of(by.slot, by.head);
  const CentreTurn turn = by.side.turn;
  for (int d = lane; d < by.side.head_dim; d += 32)
    if (!turn.turns(d)) row[d] += sign * centre[d];
  for (int i = lane; i < turn.n_pairs; i += 32) turn.move_pair(turn.tile(by.tile), centre, i, sign, row);
  __syncwarp();
}

/// CentreTurn::backward() by a warp: row [head_dim] in memory that it shares, whole before and after.
__device__ inline void turn_shared_row_back(const CentreTurn& turn, const float* angles, int lane, float* row) {
  for (int i = lane; i < turn.n_pairs; i += 32) {
    const float c = angles[i], s = angles[turn.n_pairs + i];
    float &first = row[turn.first_of(i)], &second = row[turn.second_of(i)];
    const float a = first, b = second;
    first = a * c + b * s;
    second = b * c - a * s;
  }
  __syncwarp();
}

/// row [head_dim] in memory that the warp shares <- R row, or R^T row when not `forward`: RotationView's operations on
/// every element in its order, at any head_dim. All lanes; the row is whole before and after.
__device__ inline void rotate_shared_row(const RotationView& r, bool forward, int lane, float* row) {
  if (r.kind == Rotation::none) return;
  __syncwarp();
  if (r.kind == Rotation::planar) {
    for (int i = 2 * lane; i < r.head_dim; i += 64) {
      const float c = r.table[i], s = forward ? r.table[i + 1] : -r.table[i + 1], a = row[i], b = row[i + 1];
      row[i] = a * c - b * s;
      row[i + 1] = a * s + b * c;
    }
    __syncwarp();
    return;
  }
  for (int i = lane; forward && i < r.head_dim; i += 32) row[i] *= r.table[i];
  __syncwarp();
  for (int first = 0, part; first < r.head_dim; first += part) {
    part = hadamard_part(r.head_dim, first);
    for (int half = 1; half < part; half *= 2) {
      for (int i = lane; i < part / 2; i += 32) {
        float* const low = row + first + i / half * 2 * half + i % half;
        const float a = low[0], b = low[half];
        low[0] = a + b;
        low[half] = a - b;
      }
      __syncwarp();
    }
  }
  for (int i = lane; !forward && i < r.head_dim; i += 32) row[i] *= r.table[i];
  __syncwarp();
}

/// row [head_dim] in memory that the warp shares <- R times the centre.
__device__ inline void put_centre(const TileCentre& centre, int lane, float* row) {
  for (int d = lane; d < centre.side.head_dim; d += 32) row[d] = 0;
  __syncwarp();
  move_shared_row(centre, 1, lane, row);
  rotate_shared_row(centre.side.rotation, true, lane, row);
}

}  // namespace ridge
