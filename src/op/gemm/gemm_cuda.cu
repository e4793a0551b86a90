#include "gpu/launch.h"
#include "op/gemm/gemm_cuda.h"

namespace ridge {
namespace {

// A block of 256 threads makes a 64 x 64 tile of y, a thread 4 x 4 of it; 16 columns of x and w at a time pass through
// shared memory, transposed so that a thread's four values lie together.
constexpr int kTile = 64, kDepth = 16, kThreads = 256;
constexpr int kPitch = kTile + 4;

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

__device__ void store_transposed(float (*tile)[kPitch], int row, int column, float4 v) {
  tile[column][row] = v.x;
  tile[column + 1][row] = v.y;
  tile[column + 2][row] = v.z;
  tile[column + 3][row] = v.w;
}

/// kVector: n_in is a multiple of 4 and both matrices are 16-byte aligned.
template <bool kVector>
__global__ void __launch_bounds__(kThreads)
    gemm_kernel(int64_t n_rows, int64_t n_out, int64_t n_in, const float* x, const float* w, float* y) {
  __shared__ __align__(16) float xs[kDepth][kPitch];
  __shared__ __align__(16) float ws[kDepth][kPitch];
  const int64_t first_out = int64_t(blockIdx.x) * kTile, first_row = int64_t(blockIdx.y) * kTile;
  const int load_row = int(threadIdx.x) / 4, load_column = int(threadIdx.x) % 4 * 4;
  const int ty = int(threadIdx.x) / 16 * 4, tx = int(threadIdx.x) % 16 * 4;

  float sum[4][4] = {};
  float4 next_x = load4<kVector>(x, first_row + load_row, n_rows, load_column, n_in);
  float4 next_w = load4<kVector>(w, first_out + load_row, n_out, load_column, n_in);
  for (int64_t depth = 0; depth < n_in; depth += kDepth) {
    __syncthreads();  // the tile before this one has been used
    store_transposed(xs, load_row, load_column, next_x);
    store_transposed(ws, load_row, load_column, next_w);
    __syncthreads();
    if (depth + kDepth < n_in) {  // these loads are under way while the tile is multiplied
      next_x = load4<kVector>(x, first_row + load_row, n_rows, depth + kDepth + load_column, n_in);
      next_w = load4<kVector>(w, first_out + load_row, n_out, depth + kDepth + load_column, n_in);
    }
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const float4 a4 = *reinterpret_cast<const float4*>(&xs[k][ty]);
      const float4 b4 = *reinterpret_cast<const float4*>(&ws[k][tx]);
      const float a[4] = {a4.x, a4.y, a4.z, a4.w}, b[4] = {b4.x, b4.y, b4.z, b4.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = first_row + ty + i;
    if (row >= n_rows) break;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (first_out + tx + j < n_out) y[row * n_out + first_out + tx + j] = sum[i][j];
  }
}

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

void device_gemm(gpu::StreamHandle stream, int64_t n_rows, int64_t n_out, int64_t n_in, const float* x, const float* w,
                 float* y) {
  constexpr int64_t kMaxGridRows = 65535;  // gridDim.y
  for (int64_t first = 0; first < n_rows; first += kMaxGridRows * kTile) {
    const int64_t rows = n_rows - first < kMaxGridRows * kTile ? n_rows - first : kMaxGridRows * kTile;
    const dim3 grid(unsigned(gpu::ceil_div(n_out, kTile)), unsigned(gpu::ceil_div(rows, kTile)));
    const float* from = x + first * n_in;
    float* to = y + first * n_out;
    if (n_in % 4 == 0 && aligned16(from) && aligned16(w))
      gpu::launch("gemm", gemm_kernel<true>, {grid, kThreads, 0, stream}, rows, n_out, n_in, from, w, to);
    else gpu::launch("gemm", gemm_kernel<false>, {grid, kThreads, 0, stream}, rows, n_out, n_in, from, w, to);
  }
}

}  // namespace ridge
