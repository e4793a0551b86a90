// Device code: matmuls of a brick (16 rows, a super-block of 256 columns or four blocks of 32) and up to eight tokens
// in two planes of int8, for int_stream_cuda.cu.
//
// A brick has four units: the chunks of 64 columns of a super-block, or the blocks of 32. Eight columns of the mma are
// four tokens, two planes each. Fewer than four tokens leave columns empty. There kShare = 4 / kTokens units share a
// mma's sums: column (u, token, plane) has activations for units u, u + kShare .. only, and zeros for all others. So
// lane c of a row gets the sums of its own units u = c / kTokens and its own token c % kTokens, both planes, and
// multiplies only with the scales of these.
//
// An image has for every brick and token two bytes a column, [chunk][plane][c][step] words of four columns 2c, 2c + 8,
// 2c + 1, 2c + 9 of a step of 16, as a lane's word of a brick of nibbles has; then 32 bits for each scale, the sum of x
// in fine steps (of weights with minima a float, 2^-6 of it where minima are fields of six bits at bit 6; else an int);
// behind those of all tokens the fine step of each. A fine step is 1 / 254 of the step of the first plane.
#pragma once

#include "op/gemv/int_brick_bytes.h"
#include "op/gemv/int_sums.h"

namespace ridge {

/// Sums of a lane: rows r and r + 8, of its token of every eight columns, over its units.
template <IntKind kKind, int kTokens>
class BrickSums {
 public:
  /// `n_tokens` are there; what lanes of others sum goes nowhere.
  __device__ BrickSums(int lane, int n_tokens) : fine_at_(n_tokens * kScales) {
    const int column = lane / 4;
    column_unit_ = column / (2 * kTokens);
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const int of_column = min(4 * e + column / 2 % kTokens, n_tokens - 1);
      values_at_[e] = of_column * 2 * int_group(kKind) + column % 2 * 64 + lane % 4 * 16;
      token_[e] = min(4 * e + lane % 4 % kTokens, n_tokens - 1);
    }
  }

  __device__ void begin() {
#pragma unroll
    for (int e = 0; e < kEights; ++e) of_[e][0] = of_[e][1] = 0;
  }

  __device__ void store(float* to, int, int n_tokens, int lane) const {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      float upper = of_[e][0], lower = of_[e][1];
#pragma unroll
      for (int by = kTokens; by < 4; by *= 2) {
        upper += __shfl_xor_sync(gpu::kAllLanes, upper, by);
        lower += __shfl_xor_sync(gpu::kAllLanes, lower, by);
      }
      if (4 * e + lane % 4 >= n_tokens || lane % 4 >= kTokens) continue;
      float* const row = to + (4 * e + lane % 4) * kIntSumPitch + lane / 4;
      row[0] = upper, row[8] = lower;
    }
  }

 protected:
  using Bytes = BrickBytes<kKind>;
  static constexpr int kEights = kTokens > 4 ? kTokens / 4 : 1, kShare = kTokens < 4 ? 4 / kTokens : 1;
  static constexpr int kScales = int_sub_blocks(kKind);

  /// What sums of rows r (half 0) and r + 8 are too large by, inverse.
  __device__ static float by(int half) { return half == 0 ? 1.0f : 1.0f / Bytes::kLower; }
  /// Whether the lane's column has activations of this unit.
  __device__ bool has_unit(int unit) const { return kShare == 1 || unit % kShare == column_unit_; }
  /// This lane's one of units `first` .. first + kShare - 1.
  __device__ static int own_unit(int first, int lane) { return first + (kShare == 1 ? 0 : lane % 4 / kTokens); }
  /// Sums of x of a unit, of the lane's token of an eight.
  __device__ const float* sums_of_x(const float* scales, int eight, int unit) const {
    return scales + token_[eight] * kScales + unit * (kScales / 4);
  }
  __device__ float fine_step(const float* scales, int eight) const { return scales[fine_at_ + token_[eight]]; }

  float of_[kEights][2];
  int column_unit_, fine_at_, values_at_[kEights], token_[kEights];
};

template <IntKind kKind, int kTokens>
requires(is_super_block_kind(kKind)) struct Sums<kKind, kTokens> : BrickSums<kKind, kTokens> {
  using Base = BrickSums<kKind, kTokens>;
  using Base::Base;

  /// Adds a brick in shared memory; `values` and `scales` are those of its super-block.
  __device__ void add(const uint8_t* brick, const uint8_t* values, const float* scales, int lane) {
    int sums[kEights][2][2] = {}, less[kEights][2] = {};  // of row and plane; of row
    float less_min[kEights][2] = {};
    const uint8_t* const of_row = brick + Bytes::kScales + 16 * (lane / 4);
    uint4 row[2] = {};
    if constexpr (has_min(kKind))
      for (int i = 0; i < 2; ++i) row[i] = *reinterpret_cast<const uint4*>(of_row + 128 * i);
#pragma unroll
    for (int first = 0; first < 4; first += kShare) {
      const int chunk = this->own_unit(first, lane);
      int d[kEights][kSums][4] = {};
      multiply(d, brick, values, first, lane);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (has_min(kKind)) {
          const uint32_t fields = bricks::chunk_fields(row[i].y, row[i].z, row[i].w, chunk), second = fields >> 12;
          const float min[2] = {minimum(fields), minimum(second)};
#pragma unroll
          for (int e = 0; e < kEights; ++e) {
            const float2 x = *reinterpret_cast<const float2*>(this->sums_of_x(scales, e, chunk));
            add_scaled(sums[e][i], &d[e][0][2 * i], int(fields & 63u));
            add_scaled(sums[e][i], &d[e][1][2 * i], int(second & 63u));
            less_min[e][i] = __fmaf_rn(min[0], x.x, __fmaf_rn(min[1], x.y, less_min[e][i]));
          }
        } else {
          const uint32_t word = *reinterpret_cast<const uint32_t*>(of_row + 128 * i + 4 * chunk);
          const int scale[4] = {int(gpu::select_bytes(word, 0, 0x8880)), int(gpu::select_bytes(word, 0, 0x9991)),
                                int(gpu::select_bytes(word, 0, 0xAAA2)), int(word) >> 24};
#pragma unroll
          for (int e = 0; e < kEights; ++e) {
            const int4 x = *reinterpret_cast<const int4*>(this->sums_of_x(scales, e, chunk));
#pragma unroll
            for (int s = 0; s < 4; ++s) add_scaled(sums[e][i], &d[e][s][2 * i], scale[s]);
            less[e][i] += scale[0] * x.x + scale[1] * x.y + scale[2] * x.z + scale[3] * x.w;
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float2 d;
      if constexpr (has_min(kKind)) d = gpu::unpack_f16(row[i].x);
      else d.x = gpu::f16_to_float(*reinterpret_cast<const uint16_t*>(brick + Bytes::kD + 2 * (lane / 4) + 16 * i));
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const float sum = __fmaf_rn(float(sums[e][i][0]), 254 * this->by(i), float(sums[e][i][1]) * this->by(i));
        float product;
        if constexpr (has_min(kKind)) product = __fmaf_rn(d.x, sum, -__fmul_rn(d.y, less_min[e][i]));
        else product = __fmul_rn(d.x, __fmaf_rn(-32.0f, float(less[e][i]), sum));
        this->of_[e][i] = __fmaf_rn(this->fine_step(scales, e), product, this->of_[e][i]);
      }
    }
  }

 private:
  using Base::kEights;
  using Base::kShare;
  using typename Base::Bytes;
  static constexpr int kSums = has_min(kKind) ? 2 : 4;  // of a chunk, one for each scale

  /// 64 times a minimum: its bits in the mantissa of 2^23.
  __device__ static float minimum(uint32_t fields) {
    return __uint_as_float(gpu::and_or(fields, 0xFC0u, 0x4B000000u)) - 0x1p23f;
  }
  __device__ static void add_scaled(int (&sums)[2], const int* d, int scale) {
    sums[0] += d[0] * scale, sums[1] += d[1] * scale;
  }

  /// d[eight][sum] += chunks first .. first + kShare - 1, whose activations are zero where the lane's column has
  /// another chunk.
  __device__ void multiply(int (&d)[kEights][kSums][4], const uint8_t* brick, const uint8_t* values, int first,
                           int lane) const {
#pragma unroll
    for (int chunk = first; chunk < first + kShare; ++chunk) {
      Bytes bytes;
      bytes.load(brick, chunk, lane);
      uint4 b[kEights] = {};
#pragma unroll
      for (int e = 0; e < kEights; ++e)
        if (this->has_unit(chunk)) b[e] = *reinterpret_cast<const uint4*>(values + this->values_at_[e] + 128 * chunk);
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
        uint32_t a[has_min(kKind) ? 4 : 2];
        if constexpr (has_min(kKind)) bytes.rows(2 * s, a[0], a[1]), bytes.rows(2 * s + 1, a[2], a[3]);
        else bytes.rows(s, a[0], a[1]);
#pragma unroll
        for (int e = 0; e < kEights; ++e)
          if constexpr (has_min(kKind))
            gpu::mma_u8s8(d[e][s], a, bricks::pick(b[e], 2 * s), bricks::pick(b[e], 2 * s + 1));
          else gpu::mma_u8s8_k16(d[e][s], a, bricks::pick(b[e], s));
      }
    }
  }
};

template <IntKind kKind, int kTokens>
requires(is_block_kind(kKind)) struct Sums<kKind, kTokens> : BrickSums<kKind, kTokens> {
  using Base = BrickSums<kKind, kTokens>;
  using Base::Base;

  /// Adds a brick in shared memory; `values` and `scales` are those of its 128 columns.
  __device__ void add(const uint8_t* brick, const uint8_t* values, const float* scales, int lane) {
    float product[kEights][2] = {};  // in fine steps
    Bytes bytes[2];
    for (int chunk = 0; chunk < 2; ++chunk) bytes[chunk].load(brick, chunk, lane);
    const uint8_t* const of_row = brick + Bytes::kScales + lane / 4 * kRowBytes;
#pragma unroll
    for (int first = 0; first < 4; first += kShare) {
      int d[kEights][4] = {};
#pragma unroll
      for (int block = first; block < first + kShare; ++block) {
        uint32_t a[4];
        bytes[block / 2].rows(block % 2 * 2, a[0], a[1]);
        bytes[block / 2].rows(block % 2 * 2 + 1, a[2], a[3]);
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          const uint8_t* const from = values + this->values_at_[e] + block / 2 * 128 + block % 2 * 8;
          uint2 b = {};
          if (this->has_unit(block)) b = *reinterpret_cast<const uint2*>(from);
          gpu::mma_u8s8(d[e], a, b.x, b.y);
        }
      }
      const int block = this->own_unit(first, lane);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint8_t* const from = of_row + 8 * i * kRowBytes + block * (kRowBytes / 4);
        float2 scale;
        if constexpr (has_min(kKind)) scale = gpu::unpack_f16(*reinterpret_cast<const uint32_t*>(from));
        else scale.x = gpu::f16_to_float(*reinterpret_cast<const uint16_t*>(from));
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          const int sum = 254 * d[e][2 * i] + d[e][2 * i + 1];  // below 2^28
          const float x = *this->sums_of_x(scales, e, block);
          float& p = product[e][i];
          if constexpr (has_min(kKind)) {
            p = __fmaf_rn(scale.x, this->by(i) * float(sum), __fmaf_rn(scale.y, x, p));
          } else {
            const int less = Bytes::kZero * (i == 0 ? 1 : Bytes::kLower) * __float_as_int(x);
            p = __fmaf_rn(scale.x, this->by(i) * float(sum - less), p);
          }
        }
      }
    }
#pragma unroll
    for (int e = 0; e < kEights; ++e)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        this->of_[e][i] = __fmaf_rn(this->fine_step(scales, e), product[e][i], this->of_[e][i]);
  }

 private:
  using Base::kEights;
  using Base::kShare;
  using typename Base::Bytes;
  static constexpr int kRowBytes = has_min(kKind) ? 16 : 8;  // of scales
};

}  // namespace ridge
