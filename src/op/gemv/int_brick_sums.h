// Device code: matmuls of a brick (16 rows, a super-block of 256 columns or four blocks of 32) and up to four tokens in
// two planes of int8, for int_stream_cuda.cu.
//
// A brick has four units: the chunks of 64 columns of a super-block, or the blocks of 32. Fewer than four tokens leave
// columns of the mma empty. There kShare = 4 / kTokens units share a mma's sums: column (u, token, plane) has
// activations for units u, u + kShare .. only, and zeros for all others. So lane c of a row gets the sums of its own
// units u = c / kTokens and its own token c % kTokens, both planes, and multiplies only with the scales of these.
//
// An image has for every brick and token two bytes a column, [chunk][plane][c][step] words of four columns 2c, 2c + 8,
// 2c + 1, 2c + 9 of a step of 16, as a lane's word of a brick of nibbles has; then 32 bits for each scale, the sum of x
// in fine steps (of weights with minima a float, 2^-6 of it where minima are fields of six bits at bit 6; else an int);
// behind those of all tokens the fine step of each. A fine step is 1 / 254 of the step of the first plane.
#pragma once

#include "op/gemv/int_brick_bytes.h"
#include "op/gemv/int_sums.h"

namespace ridge {

/// Sums of a lane: rows r and r + 8, of its token, over its units.
template <IntKind kKind, int kTokens>
class BrickSums {
 public:
  /// `n_tokens` are there; what lanes of others sum goes nowhere.
  __device__ BrickSums(int lane, int n_tokens) {
    const int column = lane / 4;
    column_unit_ = column / (2 * kTokens);
    values_at_ = min(column / 2 % kTokens, n_tokens - 1) * 2 * int_group(kKind) + column % 2 * 64 + lane % 4 * 16;
    const int token = min(lane % 4 % kTokens, n_tokens - 1);
    sums_at_ = token * kScales + lane % 4 / kTokens * kScales / 4;
    step_at_ = n_tokens * kScales + token;
  }

  __device__ void begin() { of_[0] = of_[1] = 0; }

  __device__ void store(float* to, int, int n_tokens, int lane) const {
    float upper = of_[0], lower = of_[1];
#pragma unroll
    for (int by = kTokens; by < 4; by *= 2) {
      upper += __shfl_xor_sync(gpu::kAllLanes, upper, by);
      lower += __shfl_xor_sync(gpu::kAllLanes, lower, by);
    }
    if (lane % 4 >= n_tokens || lane % 4 >= kTokens) return;
    float* const row = to + lane % 4 * kIntSumPitch + lane / 4;
    row[0] = upper, row[8] = lower;
  }

 protected:
  using Bytes = BrickBytes<kKind>;
  static constexpr int kShare = 4 / kTokens, kScales = int_sub_blocks(kKind);

  /// What sums of rows r (half 0) and r + 8 are too large by, inverse.
  __device__ static float by(int half) { return half == 0 ? 1.0f : 1.0f / Bytes::kLower; }
  /// Whether the lane's column has activations of this unit.
  __device__ bool has_unit(int unit) const { return kShare == 1 || unit % kShare == column_unit_; }

  float of_[2] = {};
  int column_unit_, values_at_, sums_at_, step_at_;
};

template <IntKind kKind, int kTokens>
requires(is_super_block_kind(kKind)) struct Sums<kKind, kTokens> : BrickSums<kKind, kTokens> {
  using Base = BrickSums<kKind, kTokens>;
  using Base::Base;

  /// Adds a brick in shared memory; `values` and `scales` are those of its super-block.
  __device__ void add(const uint8_t* brick, const uint8_t* values, const float* scales, int lane) {
    values += this->values_at_;
    scales += this->sums_at_;
    int sums[2][2] = {}, less[2] = {};  // of row and plane; of row
    float less_min[2] = {};
    const uint8_t* const of_row = brick + Bytes::kScales + 16 * (lane / 4);
    uint4 row[2] = {};
    if constexpr (has_min(kKind))
      for (int i = 0; i < 2; ++i) row[i] = *reinterpret_cast<const uint4*>(of_row + 128 * i);
#pragma unroll
    for (int first = 0; first < 4; first += kShare) {
      const int chunk = first + lane % 4 / kTokens;  // this lane's
      if constexpr (has_min(kKind)) {
        int d[2][4] = {};
        multiply_pairs(d, brick, values, first, lane);
        const float2 x = *reinterpret_cast<const float2*>(scales + 2 * first);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t fields = bricks::chunk_fields(row[i].y, row[i].z, row[i].w, chunk), second = fields >> 12;
          add_scaled(sums[i], &d[0][2 * i], int(fields & 63u));
          add_scaled(sums[i], &d[1][2 * i], int(second & 63u));
          less_min[i] = __fmaf_rn(minimum(fields), x.x, __fmaf_rn(minimum(second), x.y, less_min[i]));
        }
      } else {
        int d[4][4] = {};
        multiply_steps(d, brick, values, first, lane);
        const int4 x = *reinterpret_cast<const int4*>(scales + 4 * first);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t word = *reinterpret_cast<const uint32_t*>(of_row + 128 * i + 4 * chunk);
          const int scale[4] = {int(gpu::select_bytes(word, 0, 0x8880)), int(gpu::select_bytes(word, 0, 0x9991)),
                                int(gpu::select_bytes(word, 0, 0xAAA2)), int(word) >> 24};
#pragma unroll
          for (int s = 0; s < 4; ++s) add_scaled(sums[i], &d[s][2 * i], scale[s]);
          less[i] += scale[0] * x.x + scale[1] * x.y + scale[2] * x.z + scale[3] * x.w;
        }
      }
    }
    const float fine = scales[this->step_at_ - this->sums_at_];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = __fmaf_rn(float(sums[i][0]), 254 * this->by(i), float(sums[i][1]) * this->by(i));
      float product;
      if constexpr (has_min(kKind)) {
        const float2 d = gpu::unpack_f16(row[i].x);
        product = __fmaf_rn(d.x, sum, -__fmul_rn(d.y, less_min[i]));
      } else {
        const float d =
            gpu::f16_to_float(*reinterpret_cast<const uint16_t*>(brick + Bytes::kD + 2 * (lane / 4) + 16 * i));
        product = __fmul_rn(d, __fmaf_rn(-32.0f, float(less[i]), sum));
      }
      this->of_[i] = __fmaf_rn(fine, product, this->of_[i]);
    }
  }

 private:
  using Base::kShare;
  using typename Base::Bytes;

  /// 64 times a minimum: its bits in the mantissa of 2^23.
  __device__ static float minimum(uint32_t fields) {
    return __uint_as_float(gpu::and_or(fields, 0xFC0u, 0x4B000000u)) - 0x1p23f;
  }
  __device__ static void add_scaled(int (&sums)[2], const int* d, int scale) {
    sums[0] += d[0] * scale, sums[1] += d[1] * scale;
  }

  /// visit(weights, activations) of chunks first .. first + kShare - 1; zeros where the lane's column has another one.
  template <class Visit>
  __device__ void each_chunk(const uint8_t* brick, const uint8_t* values, int first, int lane,
                             const Visit& visit) const {
#pragma unroll
    for (int chunk = first; chunk < first + kShare; ++chunk) {
      Bytes bytes;
      bytes.load(brick, chunk, lane);
      uint4 words = {};
      if (this->has_unit(chunk)) words = *reinterpret_cast<const uint4*>(values + 128 * chunk);
      visit(bytes, words);
    }
  }
  /// d[h] += steps 2h and 2h + 1 of these chunks, a sub-block of 32 each.
  __device__ void multiply_pairs(int (&d)[2][4], const uint8_t* brick, const uint8_t* values, int first,
                                 int lane) const {
    each_chunk(brick, values, first, lane, [&](const Bytes& bytes, const uint4& b) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t a[4];
        bytes.rows(2 * h, a[0], a[1]);
        bytes.rows(2 * h + 1, a[2], a[3]);
        gpu::mma_u8s8(d[h], a, bricks::pick(b, 2 * h), bricks::pick(b, 2 * h + 1));
      }
    });
  }
  /// d[s] += step s of these chunks, a sub-block of 16 each.
  __device__ void multiply_steps(int (&d)[4][4], const uint8_t* brick, const uint8_t* values, int first,
                                 int lane) const {
    each_chunk(brick, values, first, lane, [&](const Bytes& bytes, const uint4& b) {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        uint32_t a[2];
        bytes.rows(s, a[0], a[1]);
        gpu::mma_u8s8_k16(d[s], a, bricks::pick(b, s));
      }
    });
  }
};

template <IntKind kKind, int kTokens>
requires(is_block_kind(kKind)) struct Sums<kKind, kTokens> : BrickSums<kKind, kTokens> {
  using Base = BrickSums<kKind, kTokens>;
  using Base::Base;

  /// Adds a brick in shared memory; `values` and `scales` are those of its 128 columns.
  __device__ void add(const uint8_t* brick, const uint8_t* values, const float* scales, int lane) {
    values += this->values_at_;
    scales += this->sums_at_;
    float product[2] = {};  // in fine steps
    Bytes bytes[2];
    for (int chunk = 0; chunk < 2; ++chunk) bytes[chunk].load(brick, chunk, lane);
    const uint8_t* of_row = brick + Bytes::kScales + lane / 4 * kRowBytes + lane % 4 / kTokens * (kRowBytes / 4);
#pragma unroll
    for (int first = 0; first < 4; first += kShare, of_row += kShare * (kRowBytes / 4)) {
      int d[4] = {};
#pragma unroll
      for (int block = first; block < first + kShare; ++block) {
        uint2 b = {};
        if (this->has_unit(block)) b = *reinterpret_cast<const uint2*>(values + block / 2 * 128 + block % 2 * 8);
        uint32_t a[4];
        bytes[block / 2].rows(block % 2 * 2, a[0], a[1]);
        bytes[block / 2].rows(block % 2 * 2 + 1, a[2], a[3]);
        gpu::mma_u8s8(d, a, b.x, b.y);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int sum = 254 * d[2 * i] + d[2 * i + 1];  // below 2^28
        if constexpr (has_min(kKind)) {
          const float2 s = gpu::unpack_f16(*reinterpret_cast<const uint32_t*>(of_row + 8 * i * kRowBytes));
          product[i] = __fmaf_rn(s.x, this->by(i) * float(sum), __fmaf_rn(s.y, scales[first], product[i]));
        } else {
          const float s = gpu::f16_to_float(*reinterpret_cast<const uint16_t*>(of_row + 8 * i * kRowBytes));
          const int less = Bytes::kZero * (i == 0 ? 1 : Bytes::kLower) * __float_as_int(scales[first]);
          product[i] = __fmaf_rn(s, this->by(i) * float(sum - less), product[i]);
        }
      }
    }
    const float fine = scales[this->step_at_ - this->sums_at_];
#pragma unroll
    for (int i = 0; i < 2; ++i) this->of_[i] = __fmaf_rn(fine, product[i], this->of_[i]);
  }

 private:
  using Base::kShare;
  using typename Base::Bytes;
  static constexpr int kRowBytes = has_min(kKind) ? 16 : 8;  // of scales
};

}  // namespace ridge
