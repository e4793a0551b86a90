// Device code that makes int8 activations: what every block of an integer matmul does for itself, or one kernel for
// all of them.
//
// An image of tokens holds, for every group of 128 columns, 128 bytes for each column of the mma (token t, or plane p
// of token t at 2 t + p), and 8 tiles_of_8 floats: steps / 16 of int4_g128 (weights are 16 times themselves there).
// Word j = 8 m + 4 h + c of a group, its columns 4 j .. 4 j + 3, is what lane 4 (column % 8) + c gives to mma m as word
// h of B; word_offset() puts the words of a lane's mmas 0 and 1 beside each other, and of 2 and 3, and odd columns
// start with the second half, so that a warp's loads of 16 bytes meet every bank once. int_brick_sums.h says what an
// image for bricks holds.
#pragma once

#include <type_traits>

#include "gpu/tensor.h"
#include "op/gemv/int_shared.h"
#include "op/norm_rope/norm_guard_cuda.h"

namespace ridge {

struct IntTokens {
  const float* x;     // [n_tokens, n_in]
  const float* norm;  // or null
  float eps;
  int n_tokens, planes;
  int n_groups;      // of a row, int_group(kind) columns each
  int column_pitch;  // columns of a group in an image, used or not
  int scale_pitch;   // floats of a group in an image
  IntTurn turn;

  /// Before x is read. The second of two grids starts when x is complete, and waits for the first at its end.
  __device__ void wait() const {
    if (turn != IntTurn::second) gpu::wait_for_previous_grid();
  }
};

struct IntImage {
  uint8_t* values;
  float* scales;
  float* factors;  // [n_tokens]: multiplies a token's sums. ternary: a / 127; others: 1/rms
};

__device__ inline int half_offset(int column, int half) { return 64 * (half ^ (column & 1)); }
__device__ inline int word_offset(int column, int word) {
  return half_offset(column, word / 16) + word % 4 * 16 + word / 8 % 2 * 8 + word / 4 % 2 * 4;
}

__device__ inline uint32_t pack_int8(int a, int b, int c, int d) {
  return (uint32_t(a) & 255u) | (uint32_t(b) & 255u) << 8 | (uint32_t(c) & 255u) << 16 | uint32_t(d) << 24;
}

/// Columns of a super-block that a lane has: k .. k + 3 and k + 8 .. k + 11, k = 16 (lane / 2) + 4 (lane % 2).
struct Octet {
  float4 first, second;
};
/// Values of a group that a lane has: four columns from 4 lane on; of blocks columns 2 (lane % 4) + 0, 8, 1 and 9 of
/// step lane / 4, a step being 16 columns.
template <IntKind kKind>
using IntValues = std::conditional_t<is_super_block_kind(kKind), Octet, float4>;

/// Bits of the largest |value|; NaN when one is (its bits are the largest).
__device__ inline unsigned top_bits(float4 v) {
  const auto bits = [](float f) { return __float_as_uint(f) & 0x7FFFFFFFu; };
  return max(max(bits(v.x), bits(v.y)), max(bits(v.z), bits(v.w)));
}
/// Largest |value| of a warp's.
__device__ inline float warp_top(float4 v) { return __uint_as_float(__reduce_max_sync(gpu::kAllLanes, top_bits(v))); }
__device__ inline float warp_top(const Octet& v) {
  return __uint_as_float(__reduce_max_sync(gpu::kAllLanes, max(top_bits(v.first), top_bits(v.second))));
}
__device__ inline float add_squares(float4 v, float sum) {
  return __fmaf_rn(v.x, v.x, __fmaf_rn(v.y, v.y, __fmaf_rn(v.z, v.z, __fmaf_rn(v.w, v.w, sum))));
}
__device__ inline float add_squares(const Octet& v, float sum) {
  return add_squares(v.first, add_squares(v.second, sum));
}
__device__ inline float4 times(float4 v, float4 w) { return make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w); }
__device__ inline Octet times(const Octet& v, const Octet& w) {
  return {times(v.first, w.first), times(v.second, w.second)};
}

/// 1.5 * 2^23: a float below 2^22 that is added to it is rounded to a whole number, which the sum has in its low bits.
inline constexpr float kIntRound = 12582912.0f;

/// The low bytes of four such sums.
__device__ inline uint32_t pack_rounded(float a, float b, float c, float d) {
  const uint32_t ab = gpu::select_bytes(__float_as_uint(a), __float_as_uint(b), 0x0040),
                 cd = gpu::select_bytes(__float_as_uint(c), __float_as_uint(d), 0x0040);
  return gpu::select_bytes(ab, cd, 0x5410);
}

/// How the values of a group become integers. Conversions have few units, so additions round.
struct IntSteps {
  float inverse, step;

  __device__ explicit IntSteps(float top) {
    constexpr float kLeastTop = 1e-30f;
    top = top < kLeastTop ? kLeastTop : top;               // keeps NaN
    inverse = gpu::fast_reciprocal(0.25f * top) * 31.75f;  // 127 / top, whose quarter is never too large
    step = __fmaf_rn(top, 1.0f / 127.0f, top - top);       // NaN when a value is NaN or infinite: so are all sums
  }
  /// kIntRound and the integer of the first plane.
  __device__ float first(float f) const { return __fmaf_rn(f, inverse, kIntRound); }
  /// kIntRound and the integer of the second plane: what is left is at most half a step, 127 finer ones.
  __device__ float rest(float f, float q) const {
    return __fmaf_rn(__fmaf_rn(kIntRound - q, step, f), inverse * 254.0f, kIntRound);
  }
};

/// A warp quantises a group of one token.
template <IntKind kKind>
requires(!is_brick_kind(kKind)) __device__
    void quantize_group(float4 v, int token, int planes, uint8_t* values, float* scales) {
  const int lane = int(threadIdx.x % 32), column = token * planes;
  const IntSteps steps(warp_top(v));
  const float step = steps.step;
  const float a = steps.first(v.x), b = steps.first(v.y), c = steps.first(v.z), d = steps.first(v.w);
  *reinterpret_cast<uint32_t*>(values + column * kIntGroup + word_offset(column, lane)) = pack_rounded(a, b, c, d);
  if (lane == 0) scales[column] = step * 0.0625f;
  if (planes == 1) return;
  *reinterpret_cast<uint32_t*>(values + (column + 1) * kIntGroup + word_offset(column + 1, lane)) =
      pack_rounded(steps.rest(v.x, a), steps.rest(v.y, b), steps.rest(v.z, c), steps.rest(v.w, d));
  if (lane == 0) scales[column + 1] = step * (0.0625f / 254.0f);
}

/// A warp quantises a super-block of one token. Lane l has words c = 2 (l % 2) and 2 (l % 2) + 1 of step l / 2, a step
/// being 16 columns.
template <IntKind kKind>
__device__ void quantize_group(const Octet& v, int token, int n_tokens, uint8_t* values, float* scales) {
  constexpr int kSubBlocks = int_sub_blocks(kKind), kLanes = 32 / kSubBlocks;
  const int lane = int(threadIdx.x % 32);
  const IntSteps steps(warp_top(v));
  const float x[2][4] = {{v.first.x, v.second.x, v.first.y, v.second.y},
                         {v.first.z, v.second.z, v.first.w, v.second.w}};
  uint8_t* const to = values + token * 512 + lane / 8 * 128 + lane % 2 * 32 + lane / 2 % 4 * 4;
  float sum = 0;
#pragma unroll
  for (int word = 0; word < 2; ++word) {
    float q[4], finer[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      q[i] = steps.first(x[word][i]), finer[i] = steps.rest(x[word][i], q[i]);
      sum += __fmaf_rn(254.0f, q[i] - kIntRound, finer[i] - kIntRound);  // exact
    }
    *reinterpret_cast<uint32_t*>(to + 16 * word) = pack_rounded(q[0], q[1], q[2], q[3]);
    *reinterpret_cast<uint32_t*>(to + 64 + 16 * word) = pack_rounded(finer[0], finer[1], finer[2], finer[3]);
  }
#pragma unroll
  for (int by = 1; by < kLanes; by *= 2) sum += __shfl_xor_sync(gpu::kAllLanes, sum, by);
  if (lane % kLanes == 0)
    scales[token * kSubBlocks + lane / kLanes] =
        kKind == IntKind::q6_k ? __int_as_float(__float2int_rn(sum)) : sum * 0x1p-6f;
  if (lane == 0) scales[n_tokens * kSubBlocks + token] = steps.step * (1.0f / 254.0f);
}

/// A warp quantises a group of one token for blocks: of each plane lane l has word c = l % 4 of step l / 4.
template <IntKind kKind>
requires(is_block_kind(kKind)) __device__
    void quantize_group(float4 v, int token, int n_tokens, uint8_t* values, float* scales) {
  const int lane = int(threadIdx.x % 32);
  const IntSteps steps(warp_top(v));
  const float x[4] = {v.x, v.y, v.z, v.w};
  float q[4], finer[4], sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    q[i] = steps.first(x[i]), finer[i] = steps.rest(x[i], q[i]);
    sum += __fmaf_rn(254.0f, q[i] - kIntRound, finer[i] - kIntRound);  // exact
  }
  uint8_t* const to = values + token * 256 + lane / 16 * 128 + lane % 4 * 16 + lane / 4 % 4 * 4;
  *reinterpret_cast<uint32_t*>(to) = pack_rounded(q[0], q[1], q[2], q[3]);
  *reinterpret_cast<uint32_t*>(to + 64) = pack_rounded(finer[0], finer[1], finer[2], finer[3]);
#pragma unroll
  for (int by = 1; by < 8; by *= 2) sum += __shfl_xor_sync(gpu::kAllLanes, sum, by);
  if (lane % 8 == 0) scales[token * 4 + lane / 8] = has_min(kKind) ? sum : __int_as_float(__float2int_rn(sum));
  if (lane == 0) scales[n_tokens * 4 + token] = steps.step * (1.0f / 254.0f);
}

/// kFromL2: for x of the second of two grids side by side, which does not wait and may have older lines in L1.
template <IntKind kKind, bool kFromL2 = false>
__device__ IntValues<kKind> load_group(const float* row, int group) {
  const auto load = [](const auto* from) { return kFromL2 ? __ldcg(from) : *from; };
  const int lane = int(threadIdx.x % 32);
  row += group * int_group(kKind);
  if constexpr (is_super_block_kind(kKind)) {
    const auto* from = reinterpret_cast<const float4*>(row + lane / 2 * 16 + lane % 2 * 4);
    return {load(from), load(from + 2)};
  } else if constexpr (is_block_kind(kKind)) {
    const auto* from = reinterpret_cast<const float2*>(row + lane / 4 * 16 + lane % 4 * 2);
    const float2 first = load(from), second = load(from + 4);
    return make_float4(first.x, second.x, first.y, second.y);
  } else {
    return load(reinterpret_cast<const float4*>(row + 4 * lane));
  }
}

/// A warp's way through the groups of tokens, of which it takes every n_warps-th.
struct Walk {
  int token, group;

  __device__ void settle(int n_groups) {
    while (group >= n_groups) group -= n_groups, ++token;
  }
};

/// body(token, group, values of x, of the norm's weight) for this lane's columns of the groups that are this warp's.
/// Loads come in batches, whose latencies overlap; the norm's weights do not wait for the grid before.
template <IntKind kKind, class Body>
__device__ void for_groups(const IntTokens& in, const Body& body) {
  using Values = IntValues<kKind>;
  constexpr int kBatch = is_super_block_kind(kKind) ? 2 : 4;
  const int n_warps = int(blockDim.x / 32);
  Walk at = {0, int(threadIdx.x / 32)};
  at.settle(in.n_groups);
  while (at.token < in.n_tokens) {
    Values x[kBatch] = {}, weight[kBatch] = {};
    if (in.norm) {
      Walk ahead = at;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (ahead.token >= in.n_tokens) break;
        weight[i] = load_group<kKind>(in.norm, ahead.group);
        ahead.group += n_warps;
        ahead.settle(in.n_groups);
      }
    }
    gpu::wait_for_previous_grid();
    Walk ahead = at;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (ahead.token >= in.n_tokens) break;
      x[i] = load_group<kKind>(in.x + int64_t(ahead.token) * in.n_groups * int_group(kKind), ahead.group);
      ahead.group += n_warps;
      ahead.settle(in.n_groups);
    }
#pragma unroll 1
    for (int n = 0; n < kBatch && at.token < in.n_tokens; ++n) {
      body(at.token, at.group, x[0], weight[0]);  // once in the code, with the values passing by
#pragma unroll
      for (int i = 1; i < kBatch; ++i) x[i - 1] = x[i], weight[i - 1] = weight[i];
      at.group += n_warps;
      at.settle(in.n_groups);
    }
  }
}

/// int4_g128 and bricks: by a whole block. The norm's factor is left to the sums. squares [tokens][warps][32] is
/// the block's; ends with a barrier, after which `factors` may be read past the next one.
template <IntKind kKind>
__device__ void quantize_steps(const IntTokens& in, const IntImage& out, float* squares) {
  using Values = IntValues<kKind>;
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32), n_warps = int(blockDim.x / 32);
  float square = 0;  // this lane's, of token `summed`
  int summed = 0;
  const auto keep_before = [&](int token) {
    for (; summed < token; ++summed, square = 0) squares[(summed * n_warps + warp) * 32 + lane] = square;
  };
  for_groups<kKind>(in, [&](int token, int group, Values v, Values weight) {
    if (in.norm) {
      keep_before(token);
      square = add_squares(v, square);
      v = times(v, weight);
    }
    quantize_group<kKind>(v, token, is_brick_kind(kKind) ? in.n_tokens : in.planes,
                          out.values + int64_t(group) * in.column_pitch * int_group(kKind),
                          out.scales + group * in.scale_pitch);
  });
  if (in.norm) keep_before(in.n_tokens);
  __syncthreads();
  for (int t = n_warps - 1 - warp; t < in.n_tokens; t += n_warps) {  // the last warps have least to do
    float factor = 1;
    if (in.norm) {
      float sum = 0;
#pragma unroll 4
      for (int i = 0; i < n_warps; ++i) sum += squares[(t * n_warps + i) * 32 + lane];
      const float mean = __fdiv_rn(gpu::warp_sum(sum), float(in.n_groups * int_group(kKind))) + in.eps;
      factor = guarded_factor(mean, __fdiv_rn(1.0f, __fsqrt_rn(mean)));
    }
    if (lane == 0) out.factors[t] = factor;
  }
}

/// quantize_steps of the one token that there is, whole: up to kHeld groups of a warp are under way at a time. The last
/// warp makes the factor, for it has least to sum.
template <IntKind kKind, bool kNorm>
__device__ void quantize_one(const IntTokens& in, const IntImage& out, float* squares) {
  using Values = IntValues<kKind>;
  constexpr int kHeld = is_super_block_kind(kKind) ? (kNorm ? 2 : 3) : kNorm ? 4 : 5;  // registers
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32), n_warps = int(blockDim.x / 32);
  const int image_pitch = in.planes * int_group(kKind);
  float square = 0;
  for (int first = warp; first < in.n_groups; first += kHeld * n_warps) {
    Values x[kHeld], weight[kHeld];
    if (kNorm) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
        if (first + i * n_warps < in.n_groups) weight[i] = load_group<kKind>(in.norm, first + i * n_warps);
    }
    in.wait();
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (first + i * n_warps < in.n_groups) x[i] = load_group<kKind, true>(in.x, first + i * n_warps);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int group = first + i * n_warps;
      if (group >= in.n_groups) break;
      Values v = x[i];
      if (kNorm) {
        square = add_squares(v, square);
        v = times(v, weight[i]);
      }
      quantize_group<kKind>(v, 0, is_brick_kind(kKind) ? 1 : in.planes, out.values + group * image_pitch,
                            out.scales + group * (is_brick_kind(kKind) ? int_sub_blocks(kKind) + 4 : 8));
    }
  }
  if (kNorm) squares[warp * 32 + lane] = square;
  __syncthreads();
  if (warp != n_warps - 1) return;
  float factor = 1;
  if (kNorm) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kIntMostWarps; ++i)
      if (i < n_warps) sum += squares[i * 32 + lane];
    const float mean = gpu::warp_sum(sum) / float(in.n_groups * int_group(kKind)) + in.eps;
    factor = guarded_factor(mean, rsqrtf(mean));
  }
  if (lane == 0) out.factors[0] = factor;
}

/// x / rms times a weight, as rms_norm_ref rounds them: 1 / rms is a double, here the sum of two floats. Products carry
/// 46 bits, so the float that they round to is that of double arithmetic but for one value in some millions; doubles
/// would take ten times as long, for the device converts few at a time.
struct NormFactor {
  float high, low;

  __device__ explicit NormFactor(double factor) : high(float(factor)), low(float(factor - double(high))) {}
  __device__ float times(float v, float weight) const {
    const float p = __fmul_rn(v, high), rest = __fmaf_rn(v, low, __fmaf_rn(v, high, -p));
    const float q = __fmul_rn(p, weight);
    return __fadd_rn(q, __fmaf_rn(rest, weight, __fmaf_rn(p, weight, -q)));
  }
  __device__ float4 times(float4 v, float4 w) const {
    return make_float4(times(v.x, w.x), times(v.y, w.y), times(v.z, w.z), times(v.w, w.w));
  }
};

/// ternary: a block quantises a token by the rule of op/gemv/ternary.h, after the norm. sums and tops have an entry a
/// warp. kWhole: a row has at most kTernaryHeld groups a warp; further groups of longer rows are read again. Ends with
/// a barrier.
template <bool kWhole>
__device__ void quantize_ternary(const IntTokens& in, int token, const IntImage& out, double* sums, unsigned* tops) {
  const int n_warps = int(blockDim.x / 32), warp = int(threadIdx.x / 32), lane = int(threadIdx.x % 32);
  const float* const row = in.x + int64_t(token) * in.n_groups * kIntGroup;
  float4 held[kTernaryHeld], weights[kTernaryHeld] = {};
  const auto each = [&](const auto& body) {
#pragma unroll
    for (int i = 0; i < kTernaryHeld; ++i)
      if (warp + i * n_warps < in.n_groups) body(warp + i * n_warps, held[i], weights[i]);
  };
  const auto each_other = [&](const auto& body) {
    if constexpr (!kWhole)
      for (int group = warp + kTernaryHeld * n_warps; group < in.n_groups; group += n_warps)
        body(group, load_group<IntKind::ternary>(row, group));
  };
  if (in.norm) each([&](int group, float4&, float4& w) { w = load_group<IntKind::ternary>(in.norm, group); });
  const double per_value = 1.0 / double(in.n_groups * kIntGroup);
  gpu::wait_for_previous_grid();
  each([&](int group, float4& v, float4&) { v = load_group<IntKind::ternary>(row, group); });

  NormFactor by(1.0);
  const auto other_normed = [&](int group, float4 v) {
    return in.norm ? by.times(v, load_group<IntKind::ternary>(in.norm, group)) : v;
  };
  if (in.norm) {
    double sum = 0;
    const auto add = [&](const float4& v) {
      sum = __fma_rn(double(v.x), double(v.x), sum), sum = __fma_rn(double(v.y), double(v.y), sum);
      sum = __fma_rn(double(v.z), double(v.z), sum), sum = __fma_rn(double(v.w), double(v.w), sum);
    };
    each([&](int, const float4& v, const float4&) { add(v); });
    each_other([&](int, const float4& v) { add(v); });
    sum = gpu::warp_sum(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    double all[2] = {};
#pragma unroll
    for (int i = 0; i < kIntMostWarps; ++i) all[i % 2] += i < n_warps ? sums[i] : 0.0;
    by = NormFactor(rsqrt(__fma_rn(all[0] + all[1], per_value, double(in.eps))));
    each([&](int, float4& v, const float4& w) { v = by.times(v, w); });
  }

  unsigned bits = 0;  // of the largest; NaN has the largest
  each([&](int, const float4& v, const float4&) { bits = max(bits, top_bits(v)); });
  each_other([&](int group, const float4& v) { bits = max(bits, top_bits(other_normed(group, v))); });
  bits = __reduce_max_sync(gpu::kAllLanes, bits);
  if (lane == 0) tops[warp] = bits;
  __syncthreads();
  bits = 0;
#pragma unroll
  for (int i = 0; i < kIntMostWarps; ++i) bits = max(bits, i < n_warps ? tops[i] : 0u);
  const bool finite = bits < 0x7F800000u;
  const float largest = __uint_as_float(bits), top = largest > 1e-5f ? largest : 1e-5f;  // token_top
  const float inverse = finite ? __fdiv_rn(127.0f, top) : 0.0f;
  const auto write = [&](int group, const float4& v) {
    const auto level = [&](float f) { return __fadd_rn(__fmul_rn(f, inverse), kIntRound); };  // ties to even
    *reinterpret_cast<uint32_t*>(out.values + (int64_t(group) * in.column_pitch + token) * kIntGroup +
                                 word_offset(token, lane)) =
        pack_rounded(level(v.x), level(v.y), level(v.z), level(v.w));
  };
  each([&](int group, const float4& v, const float4&) { write(group, v); });
  each_other([&](int group, const float4& v) { write(group, other_normed(group, v)); });
  if (threadIdx.x == 0) out.factors[token] = finite ? __fdiv_rn(top, 127.0f) : __int_as_float(0x7FC00000);
  __syncthreads();
}

}  // namespace ridge
