#include <algorithm>

#include "gpu/launch.h"
#include "op/gemm/gemm_cuda.h"

namespace ridge {
namespace {

// A block makes a tile of y of 32 rows and 32 columns. Its warps take turns with steps of 16 columns of x and w, each
// through shared memory of its own, transposed so that a lane's values lie together; a lane has 4 x 8 sums. At the end
// the warps' sums are added in order.
constexpr int kTile = 32, kDepth = 16, kWarps = 8, kThreads = 32 * kWarps;
constexpr int kPitch = kTile + 4;
constexpr int kLaneRows = 4, kLaneColumns = 8, kLoads = kTile * kDepth / 4 / 32;

/// Four consecutive columns of a row; zero outside the matrix.
template <bool kVector>
__device__ float4 load4(const float* matrix, int64_t row, int64_t n_rows, int64_t column, int64_t n_columns) {
  float4 values = make_float4(0, 0, 0, 0);
  if (row >= n_rows) return values;
  const float* at = matrix + row * n_columns + column;
  if (kVector) {
    if (column < n_columns) values = *reinterpret_cast<const float4*>(at);
  } else {
    if (column < n_columns) values.x = at[0];
    if (column + 1 < n_columns) values.y = at[1];
    if (column + 2 < n_columns) values.z = at[2];
    if (column + 3 < n_columns) values.w = at[3];
  }
  return values;
}

/// A step of a matrix on its way to shared memory: a lane's part.
template <bool kVector>
struct Part {
  float4 values[kLoads];

  __device__ void load(const float* matrix, int64_t first_row, int64_t n_rows, int64_t first_column,
                       int64_t n_columns) {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      values[i] = load4<kVector>(matrix, first_row + 8 * i + lane / 4, n_rows, first_column + lane % 4 * 4, n_columns);
  }
  __device__ void store(float (*tile)[kPitch]) const {
    const int lane = int(threadIdx.x) % 32, column = lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = 8 * i + lane / 4;
      tile[column][row] = values[i].x;
      tile[column + 1][row] = values[i].y;
      tile[column + 2][row] = values[i].z;
      tile[column + 3][row] = values[i].w;
    }
  }
};

/// kVector: n_in is a multiple of 4 and both matrices are 16-byte aligned.
template <bool kVector>
__global__ void __launch_bounds__(kThreads, 2)
    gemm_kernel(int64_t n_rows, int64_t n_out, int64_t n_in, const float* x, const float* w, float* y) {
  struct OfWarp {
    union {
      float steps[2][kDepth][kPitch];
      float sums[kTile][kTile];
    };
  };
  __shared__ __align__(16) OfWarp warps[kWarps];
  const int64_t first_out = int64_t(blockIdx.x) * kTile, first_row = int64_t(blockIdx.y) * kTile;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int ty = lane / 4 * kLaneRows, tx = lane % 4 * kLaneColumns;
  float(*const xs)[kPitch] = warps[warp].steps[0];
  float(*const ws)[kPitch] = warps[warp].steps[1];

  float sum[kLaneRows][kLaneColumns] = {};
  Part<kVector> next_x, next_w;
  const auto load = [&](int64_t depth) {
    next_x.load(x, first_row, n_rows, depth, n_in);
    next_w.load(w, first_out, n_out, depth, n_in);
  };
  constexpr int kTurn = kWarps * kDepth;
  int64_t depth = warp * kDepth;
  if (depth < n_in) load(depth);
  for (; depth < n_in; depth += kTurn) {
    __syncwarp();  // the step before this one has been used
    next_x.store(xs);
    next_w.store(ws);
    __syncwarp();
    if (depth + kTurn < n_in) load(depth + kTurn);  // under way while the step is multiplied
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const auto four = [&](const float* at, float* to) {
        const float4 of = *reinterpret_cast<const float4*>(at);
        to[0] = of.x, to[1] = of.y, to[2] = of.z, to[3] = of.w;
      };
      float a[kLaneRows], b[kLaneColumns];
      four(&xs[k][ty], a);
      four(&ws[k][tx], b);
      four(&ws[k][tx + 4], b + 4);
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i)
#pragma unroll
        for (int j = 0; j < kLaneColumns; ++j) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i)
#pragma unroll
    for (int j = 0; j < kLaneColumns; j += 4)
      *reinterpret_cast<float4*>(&warps[warp].sums[ty + i][tx + j]) =
          make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
  __syncthreads();
  for (int i = int(threadIdx.x); i < kTile * kTile; i += kThreads) {
    const int64_t row = first_row + i / kTile, out = first_out + i % kTile;
    if (row >= n_rows || out >= n_out) continue;
    float of_all = 0;
#pragma unroll
    for (int from = 0; from < kWarps; ++from) of_all += warps[from].sums[i / kTile][i % kTile];
    y[row * n_out + out] = of_all;
  }
}

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

void device_gemm(gpu::StreamHandle stream, int64_t n_rows, int64_t n_out, int64_t n_in, const float* x, const float* w,
                 float* y) {
  constexpr int64_t kMostRows = int64_t(65535) * kTile;  // gridDim.y
  const bool vector = n_in % 4 == 0 && aligned16(x) && aligned16(w);
  for (int64_t first = 0; first < n_rows; first += kMostRows) {
    const int64_t rows = std::min(n_rows - first, kMostRows);
    const dim3 grid(unsigned(gpu::ceil_div(n_out, kTile)), unsigned(gpu::ceil_div(rows, kTile)));
    gpu::launch("gemm", vector ? gemm_kernel<true> : gemm_kernel<false>, {grid, kThreads, 0, stream}, rows, n_out, n_in,
                x + first * n_in, w, y + first * n_out);
  }
}

}  // namespace ridge
