// Device code shared by the matmuls with bricks: x in planes, fragments times fragments, and what becomes of sums.
// For *.cu files only.
#pragma once

#include <algorithm>
#include <type_traits>

#include "op/gemv/brick_formats_cuda.h"
#include "op/gemv/f16_gemv_cuda.h"
#include "op/norm_rope/glu_cuda.h"

namespace ridge::bricks {

/// Counters at the start of the scratch, one for each tile of the output.
inline constexpr int64_t kCounters = 1 << 16;

/// Throw Error when a call makes no sense or the scratch is too small.
void check_call(const BrickMatrix& w, const BrickCall& call);
void check_scratch(const gpu::Buffer& scratch, int64_t needed);

// --- x ---
//
// Columns of B are (token, plane). For 32 values of k a column is four lanes' 16 bytes: the words of lane c are
// k = 2c .. 2c+1, 8 + 2c .., 16 + 2c .., 24 + 2c .., which is B of two successive steps.

/// The largest |x| as a power of two s with |x| s in [2^14, 2^15); 1 when it is 0 or not finite.
__device__ inline float plane_scale(float largest) {
  const int exponent = int(__float_as_uint(largest) >> 23 & 255u) - 127;
  if (exponent == -127 || exponent == 128) return exponent == 128 ? 1.0f : 0x1p126f;
  const int power = min(14 - exponent, 126);
  return __uint_as_float(uint32_t(power + 127) << 23);
}

/// Two values as a word of each plane.
template <bool kBfloat>
__device__ uint2 split_pair(float a, float b) {
  if constexpr (kBfloat) {
    const uint32_t high = gpu::pack_bf16(a, b);
    return {high, gpu::pack_bf16(a - __uint_as_float(high << 16), b - __uint_as_float(high & 0xFFFF0000u))};
  } else {
    const uint32_t high = gpu::pack_f16(a, b);
    const float2 rounded = gpu::unpack_f16(high);
    return {high, gpu::pack_f16(a - rounded.x, b - rounded.y)};
  }
}

/// Eight values of x as a lane's words of both planes, and the sums of the first and of the last four: values 2i, 2i +
/// 1 are word i.
template <bool kBfloat>
__device__ float2 split_values(const float (&values)[8], float scale, uint4& high, uint4& low) {
  uint2 words[4];
  float sums[2] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float a = values[2 * i] * scale, b = values[2 * i + 1] * scale;
    words[i] = split_pair<kBfloat>(a, b);
    sums[i / 2] += a + b;
  }
  high = {words[0].x, words[1].x, words[2].x, words[3].x};
  low = {words[0].y, words[1].y, words[2].y, words[3].y};
  return {sums[0], sums[1]};
}

/// Sum of two words of a plane.
template <bool kBfloat>
__device__ float plane_sum(uint32_t a, uint32_t b) {
  const auto add = [](uint32_t word) {
    if constexpr (kBfloat) return __uint_as_float(word << 16) + __uint_as_float(word & 0xFFFF0000u);
    const float2 pair = gpu::unpack_f16(word);
    return pair.x + pair.y;
  };
  return add(a) + add(b);
}

/// Whether two neighbouring values of x, and of the norm's weight, can be read at once.
inline bool readable_in_pairs(const BrickMatrix& w, const BrickCall& call) {
  const auto address = [](const float* at) { return reinterpret_cast<uintptr_t>(at); };
  return w.n_in % 2 == 0 && (address(call.x) | address(call.norm_weight)) % 8 == 0;
}

// --- Matmuls ---

/// sum[m][n] += tiles m times column tiles n over a brick. bricks: kTiles bricks one after another in shared memory;
/// b(k32, n): the lane's B words of 32 columns; x_sums(k32, n, i): with kHasStart what a product of the i-th of kSums
/// parts of them starts with, four floats; with kHasMin the sum of x, of the lane's two columns or, as a float, of the
/// first one where the second one's are zero.
template <class F, int kTiles, int kColumnTiles, class B, class XSums>
__device__ __forceinline__ void multiply(float (&sum)[kTiles][kColumnTiles][4], const uint8_t* bricks, int lane,
                                         const B& b, const XSums& x_sums) {
  const auto mma = [](float(&d)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (F::kBfloat) gpu::mma_bf16(d, a, b0, b1);
    else gpu::mma_f16(d, a, b0, b1);
  };
  const auto start = [&](float(&d)[4], int k32, int n, int i) {
    if constexpr (F::kHasStart) {
      const float4 values = x_sums(k32, n, i);
      d[0] = values.x, d[1] = values.y, d[2] = values.z, d[3] = values.w;
    } else {
      d[0] = d[1] = d[2] = d[3] = 0;
    }
  };
#pragma unroll(kTiles* kColumnTiles > 1 ? 1 : 4)
  for (int chunk = 0; chunk < F::kColumns / 64; ++chunk) {
    typename F::Codes codes[kTiles];
    typename F::ChunkScales scales[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      codes[m] = F::load(bricks + m * F::kBytes, chunk, lane);
      scales[m] = F::scales(bricks + m * F::kBytes, chunk, lane);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[kTiles][2][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        F::fragment(codes[m], 2 * half, a[m][0]);
        F::fragment(codes[m], 2 * half + 1, a[m][1]);
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const uint4 words = b(2 * chunk + half, n);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          float(&to)[4] = sum[m][n];
          if constexpr (F::kScaleSteps == 0) {
            mma(to, a[m][0], words.x, words.y);
            mma(to, a[m][1], words.z, words.w);
          } else if constexpr (F::kScaleSteps == 1) {
            float first[4], second[4];
            start(first, 2 * chunk + half, n, 0);
            start(second, 2 * chunk + half, n, 1);
            mma(first, a[m][0], words.x, words.y);
            mma(second, a[m][1], words.z, words.w);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              to[i] = fmaf(scales[m].scale[i / 2][2 * half], first[i], to[i]);
              to[i] = fmaf(scales[m].scale[i / 2][2 * half + 1], second[i], to[i]);
            }
          } else {
            float group[4];
            start(group, 2 * chunk + half, n, 0);
            mma(group, a[m][0], words.x, words.y);
            mma(group, a[m][1], words.z, words.w);
#pragma unroll
            for (int i = 0; i < 4; ++i) to[i] = fmaf(scales[m].scale[i / 2][half], group[i], to[i]);
          }
          if constexpr (F::kHasMin) {
#pragma unroll
            for (int j = 0; j < F::kSums; ++j) {
              const auto of_x = x_sums(2 * chunk + half, n, j);
              const float minima[2] = {scales[m].min[0][F::kSums * half + j], scales[m].min[1][F::kSums * half + j]};
              if constexpr (std::is_same_v<decltype(of_x), const float>) {
                to[0] = fmaf(-minima[0], of_x, to[0]);
                to[2] = fmaf(-minima[1], of_x, to[2]);
              } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) to[i] = fmaf(-minima[i / 2], i % 2 == 0 ? of_x.x : of_x.y, to[i]);
              }
            }
          }
        }
      }
    }
  }
}

// --- Results ---

/// Where tiles go: BrickMatrix and BrickCall as kernels take them.
struct Outputs {
  int n_parts;
  int rows_per_tile;
  int64_t first_tile[kMostBrickParts];
  int64_t n_out[kMostBrickParts];
  const float* bias[kMostBrickParts];  ///< of each part; of experts' gate and up
  float* y[kMostBrickParts];
  bool paired, residual;
  BrickGlu glu;
};

inline Outputs make_outputs(const BrickMatrix& w, const BrickCall& call) {
  Outputs out{.n_parts = w.n_parts,
              .rows_per_tile = int(w.rows_per_tile()),
              .paired = w.paired,
              .residual = call.residual,
              .glu = call.glu};
  for (int i = 0; i < w.n_parts; ++i) {
    out.first_tile[i] = w.first_tile(i);
    out.n_out[i] = w.n_out[i];
    out.y[i] = call.y[i];
  }
  std::copy_n(call.bias, kMostBrickParts, out.bias);
  return out;
}

/// Applies a gated activation to gate and up.
__device__ inline float gated(BrickGlu glu, float gate, float up) {
  const float positive = gate < 0 ? 0 : gate;  // keeps NaN
  switch (glu) {
    case BrickGlu::silu: return gate / (1.0f + expf(-gate)) * up;
    case BrickGlu::relu2: return positive * positive * up;
    case BrickGlu::gelu_tanh: return gelu_of(gate) * up;
    case BrickGlu::clamped_swiglu: return clamped_swiglu_of(gate, up);
  }
  return 0;
}

}  // namespace ridge::bricks
