// Matmuls of tensor cores by which chunks of tokens go through a state of fixed size: of the gated delta rule
// (chunks_cuda.h) and of Mamba2 (mamba_chunks_cuda.h). Device code.
//
// A warp has 16 columns of a head's state, transposed, as sums: [16 columns, keys]. What tokens bring and take is
// [16 columns, tokens]. Matmuls are over pairs of bfloat16, x = hi + lo to 2^-16 of it; hi hi + hi lo + lo hi is the
// product to 3 2^-16 of it at most.
#pragma once

#include "gpu/tensor.h"
#include "op/delta/delta_cuda.h"

namespace ridge::chunks {

inline constexpr int kThreads = 128, kWarps = kThreads / 32;
inline constexpr int kTokens = kDeltaChunk, kSteps = kTokens / 16;
inline constexpr int kColumns = 16 * kWarps;  ///< of a state, that a block has: 16 a warp

// --- Matrices of tensor cores ---
//
// Indices go in groups of 16, two tiles of 8 columns: column n of the even tile is index 2n, of the odd one 2n + 1.
// Lane 4 r + c then has four indices in a row, 4 c to 4 c + 3, of sums and of both factors: sums are a left factor as
// they are. A right factor, and a left one in memory, has rows of quads: four values, as (hi of two, lo of two) twice.

__device__ __forceinline__ void split(float a, float b, uint32_t& hi, uint32_t& lo) {
  hi = gpu::pack_bf16(a, b);
  lo = gpu::pack_bf16(a - gpu::bf16_to_float(uint16_t(hi)), b - gpu::bf16_to_float(uint16_t(hi >> 16)));
}
__device__ __forceinline__ uint4 quad_of(float4 x) {
  uint4 quad;
  split(x.x, x.y, quad.x, quad.y);
  split(x.z, x.w, quad.z, quad.w);
  return quad;
}

/// Sums [16, 16] of a warp: rows r and r + 8.
struct Sums {
  float even[4], odd[4];

  /// Index 4 c + i of row r (low) or r + 8.
  __device__ __forceinline__ float& at(int high, int i) { return (i % 2 ? odd : even)[2 * high + i / 2]; }
};

/// A left factor [16, 16].
struct Left {
  uint32_t hi[4], lo[4];

  __device__ __forceinline__ explicit Left(Sums& of) {
#pragma unroll
    for (int i = 0; i < 4; ++i) split(of.at(i % 2, i / 2 * 2), of.at(i % 2, i / 2 * 2 + 1), hi[i], lo[i]);
  }
  /// Rows r and r + 8.
  __device__ __forceinline__ Left(uint4 low, uint4 high)
      : hi{low.x, high.x, low.z, high.z}, lo{low.y, high.y, low.w, high.w} {}
};

__device__ __forceinline__ void multiply(float (&sums)[4], const Left& left, uint4 right) {
  gpu::mma_bf16(sums, left.hi, right.x, right.z);
  gpu::mma_bf16(sums, left.hi, right.y, right.w);
  gpu::mma_bf16(sums, left.lo, right.x, right.z);
}

/// Where a quad of a row is in shared memory: the rows that a warp reads at once lie in different banks.
__device__ __forceinline__ int place(int row, int n_quads, int quad) {
  return row * n_quads + (quad ^ ((row & 12) >> 1) ^ ((row & 2) << 1));
}

/// The rows of a right factor as a warp reads them: row 2 r of the first 16 and quad c of their first group, and where
/// the quad of the other groups is that are odd. All else of place() is known when code is compiled.
template <int kQuads>
struct RightRows {
  const uint4 *even, *odd;

  __device__ __forceinline__ RightRows(const uint4* rows, int r, int c)
      : even(rows + place(2 * r, kQuads, c)), odd(rows + place(2 * r, kQuads, 4 + c)) {}
  /// Quad of the lane in row 2 r (2 r + 1 where `next`) of the 16 rows of `step`, for a group of 16 columns.
  __device__ __forceinline__ uint4 at(int step, int group, bool next) const {
    return (group % 2 ? odd : even)[(16 * step + next) * kQuads + group / 2 * 8];
  }
};

/// Four factors in a row.
__device__ __forceinline__ void load4(const float* from, float (&to)[4]) {
  const float4 of = *reinterpret_cast<const float4*>(from);
  to[0] = of.x, to[1] = of.y, to[2] = of.z, to[3] = of.w;
}

/// The sums of a matmul with rows of tokens in shared memory.
template <int kIndices>
struct RowProduct {
  Sums (&sums)[kSteps];
  RightRows<kIndices / 4> rows;

  /// Adds left times the 16 indices of `group` to the sums of the 16 tokens of `step`.
  __device__ __forceinline__ void add(const Left& left, int step, int group) {
    multiply(sums[step].even, left, rows.at(step, group, false));
    multiply(sums[step].odd, left, rows.at(step, group, true));
  }
};

/// Sums of each matmul += state rows^T over keys.
template <int kGroups, class... Products>
__device__ __forceinline__ void multiply_state(Sums (&state)[kGroups], Products... products) {
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const Left left(state[j]);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) (products.add(left, step, j), ...);
  }
}

/// Sums += left rows^T over tokens up to each sum's own, of those 16 tokens for which wanted(step).
template <class Wanted>
__device__ __forceinline__ void multiply_below(RowProduct<kTokens> product, Sums (&left_sums)[kSteps],
                                               const Wanted& wanted) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const Left left(left_sums[i]);
#pragma unroll
    for (int step = i; step < kSteps; ++step)
      if (wanted(step)) product.add(left, step, i);
  }
}
__device__ __forceinline__ void multiply_below(RowProduct<kTokens> product, Sums (&left_sums)[kSteps]) {
  multiply_below(product, left_sums, [](int) { return true; });
}

/// state *= keep;  state += change keys^T over tokens, rows of kKeys keys in shared memory, the first of the state's
/// groups at `keys`.
template <int kKeys, int kGroups>
__device__ __forceinline__ void move_state(Sums (&state)[kGroups], float keep, Sums (&change)[kSteps],
                                           const uint4* keys, int r, int c) {
  constexpr int kQuads = kKeys / 4;
  // As place() has tokens 4 c and 4 c + 1 in even groups and 4 c + 2 and 4 c + 3 in odd ones, and the other way
  // round.
  const uint2* turned[2];
#pragma unroll
  for (int odd = 0; odd < 2; ++odd)
    turned[odd] = reinterpret_cast<const uint2*>(&keys[place(4 * c, kQuads, 4 * odd + r / 2)]) + r % 2;
#pragma unroll
  for (int j = 0; j < kGroups; ++j)
#pragma unroll
    for (int e = 0; e < 8; ++e) state[j].at(e / 4, e % 4) *= keep;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const Left left(change[step]);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      // Keys 16 j + 2 r and the next one, of tokens 4 c to 4 c + 3: hi and lo of both.
      uint2 of[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) of[e] = turned[(j + e / 2) % 2][((16 * step + e) * kQuads + j / 2 * 8) * 2];
      const auto joined = [&](uint32_t halves) {
        return make_uint4(gpu::select_bytes(of[0].x, of[1].x, halves), gpu::select_bytes(of[0].y, of[1].y, halves),
                          gpu::select_bytes(of[2].x, of[3].x, halves), gpu::select_bytes(of[2].y, of[3].y, halves));
      };
      multiply(state[j].even, left, joined(0x5410));
      multiply(state[j].odd, left, joined(0x7632));
    }
  }
}

/// Decays of a chunk from the logarithms of its tokens' own: logs[t] is their sum up to t, keeps[t] its exponential,
/// rests[t] that of the sum behind t. The first two are in shared memory; all threads see `logs` on return.
__device__ __forceinline__ void sum_decays(const double* of_tokens, double* logs, float* keeps, float* rests) {
  const int thread = int(threadIdx.x);
  if (thread < kTokens) {
    double log = 0;
    for (int i = 0; i <= thread; ++i) log += of_tokens[i];
    logs[thread] = log;
  }
  __syncthreads();
  if (thread < kTokens) {
    keeps[thread] = float(exp(logs[thread]));
    rests[thread] = float(exp(logs[kTokens - 1] - logs[thread]));
  }
}

/// Visits this lane's sums [16 columns, tokens] with their addresses in rows of tokens, or nullptr outside: `at` is
/// that of the first, `n` rows and `n_columns` columns from there on are inside. Addresses that are made one from
/// another need few registers.
template <int kGroups, class T, class Visit>
__device__ __forceinline__ void each_value(Sums (&of)[kGroups], T* at, int64_t pitch, int n, int n_columns,
                                           const Visit& visit) {
#pragma unroll
  for (int step = 0; step < kGroups; ++step) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      visit(of[step].at(0, e), 16 * step + e < n && n_columns > 0 ? at : nullptr);
      visit(of[step].at(1, e), 16 * step + e < n && n_columns > 8 ? at + 8 : nullptr);
      at += pitch;
    }
    at += 12 * pitch;
  }
}

/// Rows of tokens in device memory as quads, the keys of each and its queries.
struct TokenRows {
  const uint4 *queries, *keys;  ///< of the first token
  int64_t pitch;                ///< in quads
  int n, n_quads;               ///< tokens, and quads of a key
};
/// A block begins to copy the rows of a chunk to shared memory, by place(); what is missing is 0.
template <int kKeys>
__device__ __forceinline__ void start_rows(const TokenRows& rows, uint4* queries, uint4* keys) {
  constexpr int kQuads = kKeys / 4;
#pragma unroll 1  // addresses of all turns would fill the registers
  for (int at = int(threadIdx.x); at < kTokens * kQuads; at += kThreads) {
    const int row = at / kQuads, quad = at % kQuads, in = place(row, kQuads, quad);
    if (row < rows.n && quad < rows.n_quads) {
      const int64_t from = row * rows.pitch + quad;
      gpu::copy_async16(&queries[in], rows.queries + from);
      gpu::copy_async16(&keys[in], rows.keys + from);
    } else {
      queries[in] = keys[in] = make_uint4(0, 0, 0, 0);
    }
  }
}
/// Likewise a matrix [tokens, tokens], of which groups of columns behind the diagonal one are left out.
__device__ __forceinline__ void start_triangle(const uint4* from, uint4* to) {
  constexpr int kQuads = kTokens / 4;
#pragma unroll 1
  for (int at = int(threadIdx.x); at < kTokens * kQuads; at += kThreads) {
    const int row = at / kQuads, quad = at % kQuads;
    if (quad / 4 <= row / 16) gpu::copy_async16(&to[place(row, kQuads, quad)], &from[at]);
  }
}

/// Launches a kernel whose blocks go from chunk to chunk: with room for two, the next one is copied meanwhile.
/// `shared_bytes`: that a block may have; 0: what the device gives.
template <class Stage, class Problem>
void launch_stages(const char* name, void (*kernel)(Problem, int), gpu::Grid grid, int shared_bytes,
                   const Problem& problem) {
  constexpr int kBytes = int(sizeof(Stage));
  const int n_stages = 2 * kBytes <= (shared_bytes > 0 ? shared_bytes : gpu::most_shared_bytes()) ? 2 : 1;
  grid.shared_bytes = size_t(n_stages * kBytes);
  gpu::allow_shared_bytes(name, kernel, grid.shared_bytes);
  gpu::launch(name, kernel, grid, problem, n_stages);
}

}  // namespace ridge::chunks
