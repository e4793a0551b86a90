// Device code that makes int8 activations: what every block of an integer product does for itself, or one kernel for
// all of them.
//
// An image of tokens holds, for every group of 128 columns, 128 bytes for each column of the mma (token t, or plane p
// of token t at 2 t + p), and 8 tiles_of_8 floats: steps / 16 of int4_g128 (weights are 16 times themselves there).
// Word j = 8 m + 4 h + c of a group, its columns 4 j .. 4 j + 3, is what lane 4 (column % 8) + c gives to mma m as word
// h of B; word_offset() puts the words of a lane's mmas 0 and 1 beside each other, and of 2 and 3, and odd columns
// start with the second half, so that a warp's loads of 16 bytes meet every bank once.
#pragma once

#include "gpu/tensor.h"
#include "op/gemv/int_shared.h"

namespace ridge {

struct IntTokens {
  const float* x;     // [n_tokens, n_in]
  const float* norm;  // or null
  float eps;
  int n_tokens, planes;
  int n_groups;      // of a row
  int column_pitch;  // columns of a group in an image, used or not
  int scale_pitch;   // 8 tiles_of_8
};

struct IntImage {
  uint8_t* values;
  float* scales;
  float* factors;  // [n_tokens]: multiplies a token's sums. int4_g128: 1/rms; ternary: a / 127
};

__device__ inline int half_offset(int column, int half) { return 64 * (half ^ (column & 1)); }
__device__ inline int word_offset(int column, int word) {
  return half_offset(column, word / 16) + word % 4 * 16 + word / 8 % 2 * 8 + word / 4 % 2 * 4;
}

__device__ inline uint32_t pack_int8(int a, int b, int c, int d) {
  return (uint32_t(a) & 255u) | (uint32_t(b) & 255u) << 8 | (uint32_t(c) & 255u) << 16 | uint32_t(d) << 24;
}

/// Largest |value| of a warp's; NaN when one is (its bits are the largest).
__device__ inline float warp_top(float4 v) {
  const auto bits = [](float f) { return __float_as_uint(f) & 0x7FFFFFFFu; };
  return __uint_as_float(__reduce_max_sync(gpu::kAllLanes, max(max(bits(v.x), bits(v.y)), max(bits(v.z), bits(v.w)))));
}

/// A warp quantises a group of one token, four values a lane.
__device__ inline void quantize_group(float4 v, int token, int planes, uint8_t* values, float* scales) {
  constexpr float kLeastTop = 1e-30f;
  const int lane = int(threadIdx.x % 32);
  float top = warp_top(v);
  top = top < kLeastTop ? kLeastTop : top;  // keeps NaN
  const float inverse = __fdiv_rn(127.0f, top), step = __fmul_rn(top, 1.0f / 127.0f);
  const auto level = [](float f) { return __float2int_rn(f); };  // 0 for NaN
  const int a = level(v.x * inverse), b = level(v.y * inverse), c = level(v.z * inverse), d = level(v.w * inverse);
  const int column = token * planes;
  *reinterpret_cast<uint32_t*>(values + column * kIntGroup + word_offset(column, lane)) = pack_int8(a, b, c, d);
  if (lane == 0) scales[column] = step * 0.0625f;
  if (planes == 1) return;
  const float finer = inverse * 254.0f;
  const auto rest = [&](float f, int q) { return max(-127, min(127, level(__fmaf_rn(-float(q), step, f) * finer))); };
  *reinterpret_cast<uint32_t*>(values + (column + 1) * kIntGroup + word_offset(column + 1, lane)) =
      pack_int8(rest(v.x, a), rest(v.y, b), rest(v.z, c), rest(v.w, d));
  if (lane == 0) scales[column + 1] = step * (0.0625f / 254.0f);
}

__device__ inline float4 load_group(const float* row, int group) {
  return *reinterpret_cast<const float4*>(row + group * kIntGroup + 4 * int(threadIdx.x % 32));
}

/// A warp's way through groups from .. to - 1 of tokens up to `last`, of which it takes every n_warps-th.
struct Walk {
  int token, group;

  __device__ void settle(int from, int to) {
    while (group >= to) group -= to - from, ++token;
  }
};

/// body(token, group, values of x, of the norm's weight) for this lane's four columns of the groups from .. to - 1 of
/// tokens first .. last - 1 that are this warp's. Loads come in batches, whose latencies overlap.
template <class Body>
__device__ void for_groups(const IntTokens& in, const float* norm, int first, int last, int from, int to,
                           const Body& body) {
  constexpr int kBatch = 4;
  const int n_warps = int(blockDim.x / 32);
  Walk ahead = {first, from + int(threadIdx.x / 32)};
  ahead.settle(from, to);
  Walk at = ahead;
  while (at.token < last) {
    float4 x[kBatch] = {}, weight[kBatch] = {};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (ahead.token >= last) break;
      x[i] = load_group(in.x + int64_t(ahead.token) * in.n_groups * kIntGroup, ahead.group);
      if (norm) weight[i] = load_group(norm, ahead.group);
      ahead.group += n_warps;
      ahead.settle(from, to);
    }
#pragma unroll 1
    for (int n = 0; n < kBatch && at.token < last; ++n) {
      body(at.token, at.group, x[0], weight[0]);  // once in the code, with the values passing by
#pragma unroll
      for (int i = 1; i < kBatch; ++i) x[i - 1] = x[i], weight[i - 1] = weight[i];
      at.group += n_warps;
      at.settle(from, to);
    }
  }
}

/// int4_g128: tokens first .. last - 1, groups begin .. begin + n - 1, by a whole block. The norm's factor is left to
/// the sums. squares [tokens][groups of a row] is the block's; ends with a barrier, after which `factors` may be read
/// past the next one.
__device__ inline void quantize_int4(const IntTokens& in, int first, int last, int begin, int n, const IntImage& out,
                                     float* squares) {
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32), n_warps = int(blockDim.x / 32);
  const int from = in.norm ? 0 : begin, to = in.norm ? in.n_groups : begin + n;
  for_groups(in, in.norm, first, last, from, to, [&](int token, int group, float4 v, float4 weight) {
    if (in.norm) {
      const float sum =
          gpu::warp_sum(__fmaf_rn(v.x, v.x, __fmaf_rn(v.y, v.y, __fmaf_rn(v.z, v.z, __fmul_rn(v.w, v.w)))));
      if (lane == 0) squares[(token - first) * in.n_groups + group] = sum;
      v = make_float4(v.x * weight.x, v.y * weight.y, v.z * weight.z, v.w * weight.w);
    }
    const int at = group - begin;
    if (at >= 0 && at < n)
      quantize_group(v, token, in.planes, out.values + int64_t(at) * in.column_pitch * kIntGroup,
                     out.scales + at * in.scale_pitch);
  });
  __syncthreads();
  for (int t = first + warp; t < last; t += n_warps) {
    float sum = 0;
    for (int group = lane; group < in.n_groups && in.norm; group += 32)
      sum += squares[(t - first) * in.n_groups + group];
    if (in.norm) sum = gpu::warp_sum(sum);
    if (lane == 0)
      out.factors[t] =
          in.norm ? __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum, float(in.n_groups * kIntGroup)) + in.eps)) : 1.0f;
  }
}

/// ternary: the same, by the rule of op/gemv/ternary.h, with tops [tokens][warps]. Roundings are named or those of
/// rms_norm: the values are the CPU's.
__device__ inline void quantize_ternary(const IntTokens& in, int first, int last, int begin, int n, const IntImage& out,
                                        double* squares, float* tops) {
  const int n_warps = int(blockDim.x / 32), warp = int(threadIdx.x / 32), lane = int(threadIdx.x % 32);
  if (in.norm) {
    for (int t = first; t < last; ++t) {
      double sum = 0;
      for_groups(in, nullptr, t, t + 1, 0, in.n_groups, [&](int, int, float4 v, float4) {
        sum += double(v.x) * v.x + double(v.y) * v.y + double(v.z) * v.z + double(v.w) * v.w;
      });
      sum = gpu::warp_sum(sum);
      if (lane == 0) squares[(t - first) * n_warps + warp] = sum;
    }
    __syncthreads();
  }
  const auto factor = [&](int t) {
    double sum = 0;
    for (int i = 0; i < n_warps; ++i) sum += squares[(t - first) * n_warps + i];
    return 1.0 / sqrt(sum / double(in.n_groups * kIntGroup) + in.eps);
  };
  const auto normalized = [&](float4 v, float4 w, double by) {
    if (!in.norm) return v;
    return make_float4(float(v.x * by * w.x), float(v.y * by * w.y), float(v.z * by * w.z), float(v.w * by * w.w));
  };
  for (int t = first; t < last; ++t) {
    const double by = in.norm ? factor(t) : 1.0;
    unsigned top = 0;  // as bits, of which NaN has the largest
    for_groups(in, in.norm, t, t + 1, 0, in.n_groups, [&](int, int, float4 v, float4 weight) {
      top = max(top, __float_as_uint(warp_top(normalized(v, weight, by))));
    });
    if (lane == 0) tops[(t - first) * n_warps + warp] = __uint_as_float(top);
  }
  __syncthreads();
  for (int t = first; t < last; ++t) {
    float top = 0;
    bool finite = true;
    for (int i = 0; i < n_warps; ++i) {
      const float part = tops[(t - first) * n_warps + i];
      finite = finite && part <= 3.402823466e+38f;
      top = fmaxf(top, part);
    }
    top = top > 1e-5f ? top : 1e-5f;  // token_top
    const float inverse = finite ? __fdiv_rn(127.0f, top) : 0.0f;
    const double by = in.norm ? factor(t) : 1.0;
    for_groups(in, in.norm, t, t + 1, begin, begin + n, [&](int, int group, float4 v, float4 weight) {
      v = normalized(v, weight, by);
      const auto level = [&](float f) { return __float2int_rn(__fmul_rn(f, inverse)); };  // ties to even, 0 for NaN
      *reinterpret_cast<uint32_t*>(out.values + (int64_t(group - begin) * in.column_pitch + t) * kIntGroup +
                                   word_offset(t, lane)) = pack_int8(level(v.x), level(v.y), level(v.z), level(v.w));
    });
    if (threadIdx.x == 0) out.factors[t] = finite ? __fdiv_rn(top, 127.0f) : __int_as_float(0x7FC00000);
  }
  __syncthreads();
}

/// `squares` and `tops` are laid out by int_shared().
template <IntKind kKind>
__device__ void quantize_tokens(const IntTokens& in, int first, int last, int begin, int n, const IntImage& out,
                                void* squares, float* tops) {
  if constexpr (kKind == IntKind::ternary)
    quantize_ternary(in, first, last, begin, n, out, static_cast<double*>(squares), tops);
  else quantize_int4(in, first, last, begin, n, out, static_cast<float*>(squares));
}

}  // namespace ridge
