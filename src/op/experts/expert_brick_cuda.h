// Device code: a brick of int4_g128 times integers, by a warp. For *.cu files only.
//
// A brick of int4_g128 is a tile of the integer mma as it is: a word of step s (brick_parts_cuda.h) has in the upper
// nibbles of its bytes row r + 8, in the lower ones row r, of columns 16 s + 2 c, + 8, + 1 and + 9; a code is 8 more
// than its value. Activations are those of op/gemv/int_tokens.h, in the order of these columns.
#pragma once

#include "op/gemv/int_tokens.h"

namespace ridge {

inline constexpr int kExpertBrickBytes = 1056;

/// Columns of a group that a lane makes integers of: lane 4 s + c has those of step s, in the order of a brick's bytes.
__device__ inline float4 brick_columns_of(const float* row, int group) {
  const int lane = int(threadIdx.x) % 32;
  const float* const from = row + group * kIntGroup + lane / 4 * 16 + lane % 4 * 2;
  const float2 first = *reinterpret_cast<const float2*>(from), second = *reinterpret_cast<const float2*>(from + 8);
  return make_float4(first.x, second.x, first.y, second.y);
}

struct ExpertBrick {
  uint4 chunks[2];
  float2 scales;  ///< of rows r and r + 8

  /// `mine` is 16 lane bytes into a brick.
  __device__ void load(const uint8_t* mine, int lane) {
    chunks[0] = *reinterpret_cast<const uint4*>(mine);
    chunks[1] = *reinterpret_cast<const uint4*>(mine + 512);
    const auto* const of_rows = reinterpret_cast<const uint16_t*>(mine - 16 * lane + 1024) + lane / 4;
    scales = gpu::unpack_f16(of_rows[0] | uint32_t(of_rows[8]) << 16);
  }
  /// Adds the products of rows r, r, r + 8, r + 8 with columns 2 c, 2 c + 1 of the mma. image: of the group; column:
  /// the one that the lane loads; steps: of the two columns.
  __device__ void add_to(float (&sums)[4], const uint8_t* image, int column, int c, float2 steps) const {
    const uint32_t words[8] = {chunks[0].x, chunks[0].y, chunks[0].z, chunks[0].w,
                               chunks[1].x, chunks[1].y, chunks[1].z, chunks[1].w};
    const uint8_t* const values = image + column * kIntGroup + 16 * c;
    int sum[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 b = *reinterpret_cast<const uint4*>(values + half_offset(column, half));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t first = words[4 * half + 2 * i], second = words[4 * half + 2 * i + 1];
        const auto upper = [](uint32_t word) { return (word & 0xF0F0F0F0u) ^ 0x80808080u; };
        const uint32_t a[4] = {upper(first << 4), upper(first), upper(second << 4), upper(second)};
        if (half + i == 0) gpu::mma_s8_from(__float_as_int(kIntRound), sum, a, b.x, b.y);
        else gpu::mma_s8(sum, a, i == 0 ? b.x : b.z, i == 0 ? b.y : b.w);
      }
    }
    // As in int_sums.h: a sum is a float that is kIntRound larger.
    const float2 less = {-kIntRound * scales.x, -kIntRound * scales.y};
    sums[0] = __fmaf_rn(__fmaf_rn(__int_as_float(sum[0]), scales.x, less.x), steps.x, sums[0]);
    sums[1] = __fmaf_rn(__fmaf_rn(__int_as_float(sum[1]), scales.x, less.x), steps.y, sums[1]);
    sums[2] = __fmaf_rn(__fmaf_rn(__int_as_float(sum[2]), scales.y, less.y), steps.x, sums[2]);
    sums[3] = __fmaf_rn(__fmaf_rn(__int_as_float(sum[3]), scales.y, less.y), steps.y, sums[3]);
  }
};

/// The next brick of a warp's ring of kStages bricks, of which `at` is the place in bytes; feed(place) asks for the
/// brick that comes there after it. ring: 16 lane bytes into its start.
template <int kStages, class Feed>
__device__ __forceinline__ ExpertBrick take_brick(uint8_t* ring, int& at, int lane, const Feed& feed) {
  gpu::copy_wait<kStages - 1>();
  __syncwarp();  // the brick has come, of all lanes
  ExpertBrick brick;
  brick.load(ring + at, lane);
  __syncwarp();
  feed(ring + at);
  at = at == (kStages - 1) * kExpertBrickBytes ? 0 : at + kExpertBrickBytes;
  return brick;
}

}  // namespace ridge
