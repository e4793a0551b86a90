#include <algorithm>

#include "gpu/launch.h"
#include "op/gemm/gemm_cuda.h"

namespace ridge {
namespace {

// A block of 256 threads makes a tile of y of 64 or 32 rows and 64 columns, a thread 4 or 2 x 4 of it; 32 columns of x and
// w at a time pass through shared memory, transposed so that a thread's values lie together.
constexpr int kColumns = 64, kDepth = 32, kThreads = 256;

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

/// A tile of kRows rows and kDepth columns of a matrix on its way to shared memory: a thread's part.
template <int kRows>
struct Part {
  static constexpr int kLoads = kRows * kDepth / 4 / kThreads, kPitch = kRows + 4;
  static_assert(kLoads * kThreads * 4 == kRows * kDepth);
  float4 values[kLoads];

  template <bool kVector>
  __device__ void load(const float* matrix, int64_t first_row, int64_t n_rows, int64_t first_column,
                       int64_t n_columns) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = i * kThreads + int(threadIdx.x);
      values[i] = load4<kVector>(matrix, first_row + at / (kDepth / 4), n_rows, first_column + at % (kDepth / 4) * 4,
                                 n_columns);
    }
  }
  __device__ void store(float (*tile)[kPitch]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = i * kThreads + int(threadIdx.x), row = at / (kDepth / 4), column = at % (kDepth / 4) * 4;
      tile[column][row] = values[i].x;
      tile[column + 1][row] = values[i].y;
      tile[column + 2][row] = values[i].z;
      tile[column + 3][row] = values[i].w;
    }
  }
};

/// kVector: n_in is a multiple of 4 and both matrices are 16-byte aligned.
template <bool kVector, int kRows>
__global__ void __launch_bounds__(kThreads)
    gemm_kernel(int64_t n_rows, int64_t n_out, int64_t n_in, const float* x, const float* w, float* y) {
  using PartOfX = Part<kRows>;
  using PartOfW = Part<kColumns>;
  constexpr int kMine = kRows / 16;  // rows of a thread
  __shared__ __align__(16) float xs[kDepth][PartOfX::kPitch];
  __shared__ __align__(16) float ws[kDepth][PartOfW::kPitch];
  const int64_t first_out = int64_t(blockIdx.x) * kColumns, first_row = int64_t(blockIdx.y) * kRows;
  const int ty = int(threadIdx.x) / 16 * kMine, tx = int(threadIdx.x) % 16 * 4;

  float sum[kMine][4] = {};
  PartOfX next_x;
  PartOfW next_w;
  next_x.template load<kVector>(x, first_row, n_rows, 0, n_in);
  next_w.template load<kVector>(w, first_out, n_out, 0, n_in);
  for (int64_t depth = 0; depth < n_in; depth += kDepth) {
    __syncthreads();  // the tile before this one has been used
    next_x.store(xs);
    next_w.store(ws);
    __syncthreads();
    if (depth + kDepth < n_in) {  // these loads are under way while the tile is multiplied
      next_x.template load<kVector>(x, first_row, n_rows, depth + kDepth, n_in);
      next_w.template load<kVector>(w, first_out, n_out, depth + kDepth, n_in);
    }
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const float4 b4 = *reinterpret_cast<const float4*>(&ws[k][tx]);
      const float b[4] = {b4.x, b4.y, b4.z, b4.w};
#pragma unroll
      for (int i = 0; i < kMine; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(xs[k][ty + i], b[j], sum[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
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
  const auto launch = [&](auto kernel, int tile_rows) {
    constexpr int64_t kMaxGridRows = 65535;  // gridDim.y
    for (int64_t first = 0; first < n_rows; first += kMaxGridRows * tile_rows) {
      const int64_t rows = std::min(n_rows - first, kMaxGridRows * tile_rows);
      const dim3 grid(unsigned(gpu::ceil_div(n_out, kColumns)), unsigned(gpu::ceil_div(rows, tile_rows)));
      gpu::launch("gemm", kernel, {grid, kThreads, 0, stream}, rows, n_out, n_in, x + first * n_in, w,
                  y + first * n_out);
    }
  };
  const bool vector = n_in % 4 == 0 && aligned16(x) && aligned16(w);
  // Tiles of fewer rows where those of 64 would not be two a multiprocessor, which hide each other's waiting.
  const bool few = gpu::ceil_div(n_out, kColumns) * gpu::ceil_div(n_rows, 64) < 2 * gpu::multiprocessors();
  if (few) launch(vector ? gemm_kernel<true, 32> : gemm_kernel<false, 32>, 32);
  else launch(vector ? gemm_kernel<true, 64> : gemm_kernel<false, 64>, 64);
}

}  // namespace ridge
