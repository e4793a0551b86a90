// Device code: what the kernels of experts do with a brick that has come into a warp's ring, for one token or four in
// two planes of int8. For *.cu files only.
#pragma once

#include <array>
#include <iterator>
#include <type_traits>
#include <utility>

#include "op/experts/expert_brick_cuda.h"
#include "op/experts/int_formats.h"
#include "op/gemv/int_brick_sums.h"

namespace ridge {

/// Kinds of kIntExpertFormats.
inline constexpr auto kExpertKinds = [] {
  std::array<IntKind, std::size(kIntExpertFormats)> kinds = {};
  for (size_t i = 0; i < kinds.size(); ++i) kinds[i] = int_kind_of(kIntExpertFormats[i]);
  return kinds;
}();

/// Calls f(std::integral_constant of `kind`), which is one of kExpertKinds.
template <class F>
void with_expert_kind(IntKind kind, const F& f) {
  [&]<size_t... i>(std::index_sequence<i...>) {
    (void)((kind == kExpertKinds[i] && (f(std::integral_constant<IntKind, kExpertKinds[i]>()), true)) || ...);
  }
  (std::make_index_sequence<kExpertKinds.size()>());
}

/// Whether a matrix has one of kIntExpertFormats, in whole bricks.
inline bool is_int_expert(const BrickMatrix& w) {
  const auto kind = find_int_kind(w.format);
  for (const IntKind k : kExpertKinds)
    if (kind == k) return w.n_parts == 1 && w.n_in % int_group(k) == 0;
  return false;
}

/// The integers of kTokens tokens for a brick: values, then steps. Of int4_g128 (op/gemv/int_tokens.h) the steps of
/// both planes; of others the sums of x for every scale, then the fine steps (op/gemv/int_brick_sums.h).
template <IntKind kKind, int kTokens = 1>
struct ExpertImage {
  static constexpr bool kInt4 = kKind == IntKind::int4_g128;
  static constexpr int kScales = kInt4 ? 0 : int_sub_blocks(kKind);
  static constexpr int kStepsAt = 2 * kTokens * int_group(kKind);
  static constexpr int kBytes = kStepsAt + 4 * kTokens * kScales + (kInt4 ? (8 * kTokens + 15) / 16 * 16 : 16);

  __device__ static IntValues<kKind> load(const float* row, int group) {
    if constexpr (kInt4) return brick_columns_of(row, group);
    else return load_group<kKind>(row, group);
  }
  /// By a warp.
  __device__ static void make(const IntValues<kKind>& v, int token, uint8_t* image) {
    quantize_group<kKind>(v, token, kInt4 ? 2 : kTokens, image, reinterpret_cast<float*>(image + kStepsAt));
  }
  /// Sums of the only token become `weight` times as large.
  __device__ static void weigh(uint8_t* image, float weight) {
    static_assert(kTokens == 1);
    auto* const steps = reinterpret_cast<float*>(image + kStepsAt);
    if (threadIdx.x % 32 > 0) return;
    steps[kScales] *= weight;
    if (kInt4) steps[1] *= weight;
  }
};

/// A lane's sums over the bricks of a tile. add() takes the next brick of the ring of kStages bricks, `at` bytes into
/// it, and asks with feed(place) for a later one; `ring` is 16 lane bytes into its start. kAhead bricks are asked for
/// before the first.
template <IntKind kKind, int kStages, int kTokens = 1>
class ExpertSums {
 public:
  static constexpr int kAhead = kStages - 1;  // one is in use
  /// Floats from a token's sums to the next one's, and from those of rows 0 .. 7 of a tile to those of rows 8 .. 15.
  static constexpr int kTokenPitch = kIntSumPitch, kLowerAt = 8;

  __device__ explicit ExpertSums(int lane) : sums_(lane, kTokens) {}
  __device__ void begin() { sums_.begin(); }
  template <class Feed>
  __device__ void add(uint8_t* ring, int& at, int lane, const uint8_t* image, const Feed& feed) {
    constexpr int kBytes = int_tile_bytes(kKind);
    gpu::copy_wait<kAhead - 1>();
    __syncwarp();  // the brick has come, of all lanes, and the one before is no longer read
    feed(ring + (at == 0 ? (kStages - 1) * kBytes : at - kBytes));
    sums_.add(ring + at - 16 * lane, image,
              reinterpret_cast<const float*>(image + ExpertImage<kKind, kTokens>::kStepsAt), lane);
    at = at == (kStages - 1) * kBytes ? 0 : at + kBytes;
  }
  /// The 16 rows of the tile.
  __device__ void store(float* to, int lane) const { sums_.store(to, 2, kTokens, lane); }

 private:
  Sums<kKind, kTokens> sums_;
};

template <int kStages, int kTokens>
class ExpertSums<IntKind::int4_g128, kStages, kTokens> {
 public:
  static constexpr int kAhead = kStages, kTokenPitch = 8, kLowerAt = 8 * kTokens;

  /// Columns that no plane has are the last plane again.
  __device__ explicit ExpertSums(int lane) : column_(min(lane / 4, 2 * kTokens - 1)) {}
  __device__ void begin() { of_[0] = of_[1] = of_[2] = of_[3] = 0; }
  template <class Feed>
  __device__ void add(uint8_t* ring, int& at, int lane, const uint8_t* image, const Feed& feed) {
    const ExpertBrick brick = take_brick<kStages>(ring, at, lane, feed);
    const auto* steps = reinterpret_cast<const float2*>(image + ExpertImage<IntKind::int4_g128, kTokens>::kStepsAt);
    brick.add_to(of_, image, column_, lane % 4, steps[kTokens == 1 ? 0 : lane % 4]);
  }
  __device__ void store(float* to, int lane) const {
    if (lane % 4 >= kTokens) return;
    float* const row = to + lane % 4 * kTokenPitch + lane / 4;
    row[0] = of_[0] + of_[1], row[kLowerAt] = of_[2] + of_[3];
  }

 private:
  float of_[4];
  int column_;
};

}  // namespace ridge
