// Device code: what a kernel of experts does with a brick that has come into a warp's ring, for one token in two planes
// of int8. For *.cu files only.
#pragma once

#include "op/experts/expert_brick_cuda.h"
#include "op/gemv/int_brick_sums.h"

namespace ridge {

/// The integers of a token for a brick: values, then steps. Of int4_g128 (op/gemv/int_tokens.h) the steps of both
/// planes; of others the sums of x for every scale, then the fine step (op/gemv/int_brick_sums.h).
template <IntKind kKind>
struct ExpertImage {
  static constexpr int kScales = kKind == IntKind::int4_g128 ? 0 : int_sub_blocks(kKind);
  static constexpr int kStepsAt = 2 * int_group(kKind), kBytes = kStepsAt + 4 * (kScales + 4);

  __device__ static IntValues<kKind> load(const float* row, int group) {
    if constexpr (kKind == IntKind::int4_g128) return brick_columns_of(row, group);
    else return load_group<kKind>(row, group);
  }
  /// By a warp. Sums are multiplied by `weight`.
  __device__ static void make(const IntValues<kKind>& v, uint8_t* image, float weight) {
    auto* const steps = reinterpret_cast<float*>(image + kStepsAt);
    quantize_group<kKind>(v, 0, kKind == IntKind::int4_g128 ? 2 : 1, image, steps);
    if (threadIdx.x % 32 > 0) return;
    steps[kScales] *= weight;
    if (kKind == IntKind::int4_g128) steps[1] *= weight;
  }
};

/// A lane's sums over the bricks of a tile. add() takes the next brick of the ring of kStages bricks, `at` bytes into
/// it, and asks with feed(place) for a later one; `ring` is 16 lane bytes into its start. kAhead bricks are asked for
/// before the first.
template <IntKind kKind, int kStages>
class ExpertSums {
 public:
  static constexpr int kAhead = kStages - 1;  // one is in use

  __device__ explicit ExpertSums(int lane) : sums_(lane, 1) {}
  __device__ void begin() { sums_.begin(); }
  template <class Feed>
  __device__ void add(uint8_t* ring, int& at, int lane, const uint8_t* image, const Feed& feed) {
    constexpr int kBytes = int_tile_bytes(kKind);
    gpu::copy_wait<kAhead - 1>();
    __syncwarp();  // the brick has come, of all lanes, and the one before is no longer read
    feed(ring + (at == 0 ? (kStages - 1) * kBytes : at - kBytes));
    sums_.add(ring + at - 16 * lane, image, reinterpret_cast<const float*>(image + ExpertImage<kKind>::kStepsAt), lane);
    at = at == (kStages - 1) * kBytes ? 0 : at + kBytes;
  }
  /// The 16 rows of the tile.
  __device__ void store(float* to, int lane) const { sums_.store(to, 2, 1, lane); }

 private:
  Sums<kKind, 1> sums_;
};

template <int kStages>
class ExpertSums<IntKind::int4_g128, kStages> {
 public:
  static constexpr int kAhead = kStages;

  /// Columns that no plane has are the last plane again.
  __device__ explicit ExpertSums(int lane) : column_(min(lane / 4, 1)) {}
  __device__ void begin() { of_[0] = of_[1] = of_[2] = of_[3] = 0; }
  template <class Feed>
  __device__ void add(uint8_t* ring, int& at, int lane, const uint8_t* image, const Feed& feed) {
    const ExpertBrick brick = take_brick<kStages>(ring, at, lane, feed);
    const auto* steps = reinterpret_cast<const float2*>(image + ExpertImage<IntKind::int4_g128>::kStepsAt);
    brick.add_to(of_, image, column_, lane % 4, *steps);
  }
  __device__ void store(float* to, int lane) const {
    if (lane % 4 > 0) return;
    to[lane / 4] = of_[0] + of_[1];
    to[lane / 4 + 8] = of_[2] + of_[3];
  }

 private:
  float of_[4];
  int column_;
};

}  // namespace ridge
