// Device code: matmuls of a brick of a k-quant (16 rows, a super-block of 256 columns) and up to four tokens in two
// planes of int8, for int_stream_cuda.cu.
//
// A word of a brick has four nibbles of row r and four of row r + 8: a mask makes bytes of the one, another mask makes
// bytes of the other, 16 times as large (q5_k: 8 times, q6_k: 4 times, the bits of their second share put in). Bytes
// of weights have no sign, those of activations have one.
//
// Fewer than four tokens leave columns of the mma empty. There kShare = 4 / kTokens chunks of 64 columns share a mma's
// sums: column (u, token, plane) has activations for chunks u, u + kShare .. only, and zeros for all others. So lane
// c of a row gets the sums of its own chunks u = c / kTokens and its own token c % kTokens, both planes, and multiplies
// only with the scales of these.
//
// An image has for every super-block and token 512 bytes of values, [chunk][plane][c][step] words of four columns
// 2c, 2c + 8, 2c + 1, 2c + 9 of a step of 16, as a lane's word of the brick has; then 32 bits for each sub-block, the
// sum of x in fine steps (2^-6 of it as a float where minima are fields of six bits at bit 6, else an int); behind
// those of all tokens the fine step of each. A fine step is 1 / 254 of the step of the first plane.
#pragma once

#include "op/gemv/brick_k_formats_cuda.h"
#include "op/gemv/int_sums.h"

namespace ridge {

/// Codes of a brick as bytes: of step `step` of a chunk, row r's and kLower times those of row r + 8.
template <IntKind kKind>
struct BrickBytes;

template <>
struct BrickBytes<IntKind::q4_k> {
  static constexpr int kLower = 16, kScales = 2048;
  uint4 low;

  __device__ void load(const uint8_t* brick, int chunk, int lane) { low = bricks::lane_words(brick, chunk, lane); }
  __device__ void rows(int step, uint32_t& upper, uint32_t& lower) const {
    const uint32_t word = bricks::pick(low, step);
    upper = word & 0x0F0F0F0Fu, lower = word & 0xF0F0F0F0u;
  }
};

template <>
struct BrickBytes<IntKind::q5_k> {
  static constexpr int kLower = 8, kScales = bricks::FiveBits<256>::kCodeBytes;
  bricks::FiveBits<256>::Codes codes;

  __device__ void load(const uint8_t* brick, int chunk, int lane) {
    codes = bricks::FiveBits<256>::load(brick, chunk, lane);
  }
  __device__ void rows(int step, uint32_t& upper, uint32_t& lower) const {
    const uint32_t word = bricks::pick(codes.low, step);
    const uint32_t bits = (step < 2 ? codes.high << (3 - 2 * step) : codes.high >> (2 * step - 3)) & 0x18181818u;
    upper = gpu::select_bits<0x0F0F0F0F>(word, bits), lower = gpu::select_bits<0xF0F0F0F0>(word, bits);
  }
};

template <>
struct BrickBytes<IntKind::q6_k> {
  static constexpr int kLower = 4, kScales = bricks::BrickQ6_K::kScales, kD = bricks::BrickQ6_K::kD;
  bricks::BrickQ6_K::Codes codes;

  __device__ void load(const uint8_t* brick, int chunk, int lane) {
    codes = bricks::BrickQ6_K::load(brick, chunk, lane);
  }
  __device__ void rows(int step, uint32_t& upper, uint32_t& lower) const {
    const uint32_t word = bricks::pick(codes.low, step), high = codes.high[step / 2];
    const uint32_t bits = (step % 2 == 0 ? high << 2 : high >> 2) & 0x3C3C3C3Cu;
    upper = gpu::select_bits<0x0F0F0F0F>(word, bits), lower = gpu::select_bits<0xF0F0F0F0>(word, bits);
  }
};

/// Sums of a lane: rows r and r + 8, of its token, over its chunks.
template <IntKind kKind, int kTokens>
requires(is_brick_kind(kKind)) struct Sums<kKind, kTokens> {
 public:
  /// `n_tokens` are there; what lanes of others sum goes nowhere.
  __device__ Sums(int lane, int n_tokens) {
    const int column = lane / 4;
    column_chunk_ = column / (2 * kTokens);
    values_at_ = min(column / 2 % kTokens, n_tokens - 1) * kTokenBytes + column % 2 * 64 + lane % 4 * 16;
    const int token = min(lane % 4 % kTokens, n_tokens - 1);
    sums_at_ = token * kSubBlocks + lane % 4 / kTokens * kSubBlocks / 4;
    step_at_ = n_tokens * kSubBlocks + token;
  }

  __device__ void begin() { of_[0] = of_[1] = 0; }

  /// Adds a brick in shared memory; `values` and `scales` are those of its super-block.
  __device__ void add(const uint8_t* brick, const uint8_t* values, const float* scales, int lane) {
    values += values_at_;
    int sums[2][2] = {}, less[2] = {};  // of row and plane; of row
    float less_min[2] = {};
    const uint8_t* const of_row = brick + Bytes::kScales + 16 * (lane / 4);
    uint4 row[2] = {};
    if constexpr (kHasMin)
      for (int i = 0; i < 2; ++i) row[i] = *reinterpret_cast<const uint4*>(of_row + 128 * i);
#pragma unroll
    for (int first = 0; first < 4; first += kShare) {
      const int chunk = first + lane % 4 / kTokens;  // this lane's
      if constexpr (kHasMin) {
        int d[2][4] = {};
        multiply_pairs(d, brick, values, first, lane);
        const float2 x = *reinterpret_cast<const float2*>(scales + sums_at_ + 2 * first);
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
        const int4 x = *reinterpret_cast<const int4*>(scales + sums_at_ + 4 * first);
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
    const float fine = scales[step_at_];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      constexpr float kBy[2] = {1, 1.0f / Bytes::kLower};
      const float sum = __fmaf_rn(float(sums[i][0]), 254 * kBy[i], float(sums[i][1]) * kBy[i]);
      float product;
      if constexpr (kHasMin) {
        const float2 d = gpu::unpack_f16(row[i].x);
        product = __fmaf_rn(d.x, sum, -__fmul_rn(d.y, less_min[i]));
      } else {
        const float d = gpu::f16_to_float(
            *reinterpret_cast<const uint16_t*>(brick + BrickBytes<kKind>::kD + 2 * (lane / 4) + 16 * i));
        product = __fmul_rn(d, __fmaf_rn(-32.0f, float(less[i]), sum));
      }
      of_[i] = __fmaf_rn(fine, product, of_[i]);
    }
  }

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

 private:
  using Bytes = BrickBytes<kKind>;
  static constexpr bool kHasMin = kKind != IntKind::q6_k;
  static constexpr int kShare = 4 / kTokens, kSubBlocks = int_sub_blocks(kKind), kTokenBytes = 512;

  /// 64 times a minimum: its bits in the mantissa of 2^23.
  __device__ static float minimum(uint32_t fields) {
    return __uint_as_float(gpu::and_or(fields, 0xFC0u, 0x4B000000u)) - 0x1p23f;
  }
  __device__ static void add_scaled(int (&sums)[2], const int* d, int scale) {
    sums[0] += d[0] * scale, sums[1] += d[1] * scale;
  }

  /// Activations of a chunk, zeros where the lane's column has another one.
  __device__ uint4 load_column(const uint8_t* values, int chunk) const {
    uint4 words = {};
    if (kShare == 1 || chunk % kShare == column_chunk_) words = *reinterpret_cast<const uint4*>(values + 128 * chunk);
    return words;
  }

  /// visit(weights, activations) of chunks first .. first + kShare - 1.
  template <class Visit>
  __device__ void each_chunk(const uint8_t* brick, const uint8_t* values, int first, int lane,
                             const Visit& visit) const {
#pragma unroll
    for (int chunk = first; chunk < first + kShare; ++chunk) {
      Bytes bytes;
      bytes.load(brick, chunk, lane);
      visit(bytes, load_column(values, chunk));
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

  float of_[2] = {};
  int column_chunk_, values_at_, sums_at_, step_at_;
};

}  // namespace ridge
