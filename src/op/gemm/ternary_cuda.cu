#include <string>

#include "gpu/launch.h"
#include "op/gemm/ternary_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

// Roundings are named (__fmul_rn, __fdiv_rn), so that no compiler flag can take the results from the CPU's.

constexpr int kQuantizeThreads = 256;

/// Whether x is neither NaN nor infinite.
__device__ bool finite(float x) { return fabsf(x) <= 3.402823466e+38f; }

/// quantize_token_ref of op/gemv/ternary.h, a block for each row.
__global__ void __launch_bounds__(kQuantizeThreads)
    quantize_rows_kernel(int64_t n_in, const float* x, int8_t* q, float* row_scale) {
  const auto* from = reinterpret_cast<const float4*>(x + int64_t(blockIdx.x) * n_in);
  auto* to = reinterpret_cast<char4*>(q + int64_t(blockIdx.x) * n_in);
  __shared__ float parts[kQuantizeThreads / 32];

  float largest = 0;
  bool all_finite = true;
  for (int64_t i = threadIdx.x; i < n_in / 4; i += kQuantizeThreads) {
    const float4 v = from[i];
    largest = fmaxf(fmaxf(fmaxf(largest, fabsf(v.x)), fmaxf(fabsf(v.y), fabsf(v.z))), fabsf(v.w));
    all_finite = all_finite && finite(v.x) && finite(v.y) && finite(v.z) && finite(v.w);
  }
  largest = gpu::warp_max(largest);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = largest;
  all_finite = __syncthreads_and(all_finite);
  for (const float part : parts) largest = fmaxf(largest, part);

  const float top = largest > 1e-5f ? largest : 1e-5f;  // token_top
  const float inverse = __fdiv_rn(127.0f, top);
  const auto level = [&](float value) {  // ties to even
    return all_finite ? static_cast<signed char>(__float2int_rn(__fmul_rn(value, inverse)))
                      : static_cast<signed char>(0);
  };
  for (int64_t i = threadIdx.x; i < n_in / 4; i += kQuantizeThreads) {
    const float4 v = from[i];
    to[i] = make_char4(level(v.x), level(v.y), level(v.z), level(v.w));
  }
  if (threadIdx.x == 0) row_scale[blockIdx.x] = all_finite ? __fdiv_rn(top, 127.0f) : __int_as_float(0x7FC00000);
}

// A block of 256 threads makes a 64 x 64 tile of y, a thread 4 x 4 of it. A step is 64 columns of q and w, in words of
// four; they pass through shared memory transposed, so that a thread's four words lie together.
constexpr int kTile = 64, kWords = 16, kThreads = 256;
constexpr int kPitch = kTile + 4;

/// Four consecutive words of a row; zero outside the matrix. n_words is a multiple of 4.
__device__ int4 load4(const int8_t* matrix, int64_t row, int64_t n_rows, int64_t word, int64_t n_words) {
  if (row >= n_rows || word >= n_words) return make_int4(0, 0, 0, 0);
  return *reinterpret_cast<const int4*>(matrix + 4 * (row * n_words + word));
}

__device__ void store_transposed(int (*tile)[kPitch], int row, int word, int4 v) {
  tile[word][row] = v.x;
  tile[word + 1][row] = v.y;
  tile[word + 2][row] = v.z;
  tile[word + 3][row] = v.w;
}

__global__ void __launch_bounds__(kThreads)
    ternary_kernel(int64_t n_rows, int64_t n_out, int64_t n_words, const int8_t* q, const float* row_scale,
                   const int8_t* w, float scale, float* y) {
  __shared__ __align__(16) int qs[kWords][kPitch];
  __shared__ __align__(16) int ws[kWords][kPitch];
  const int64_t first_out = int64_t(blockIdx.x) * kTile, first_row = int64_t(blockIdx.y) * kTile;
  const int load_row = int(threadIdx.x) / 4, load_word = int(threadIdx.x) % 4 * 4;
  const int ty = int(threadIdx.x) / 16 * 4, tx = int(threadIdx.x) % 16 * 4;

  int sum[4][4] = {};
  int4 next_q = load4(q, first_row + load_row, n_rows, load_word, n_words);
  int4 next_w = load4(w, first_out + load_row, n_out, load_word, n_words);
  for (int64_t word = 0; word < n_words; word += kWords) {
    __syncthreads();  // the tile before this one has been used
    store_transposed(qs, load_row, load_word, next_q);
    store_transposed(ws, load_row, load_word, next_w);
    __syncthreads();
    if (word + kWords < n_words) {  // these loads are under way while the tile is multiplied
      next_q = load4(q, first_row + load_row, n_rows, word + kWords + load_word, n_words);
      next_w = load4(w, first_out + load_row, n_out, word + kWords + load_word, n_words);
    }
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const int4 a4 = *reinterpret_cast<const int4*>(&qs[k][ty]);
      const int4 b4 = *reinterpret_cast<const int4*>(&ws[k][tx]);
      const int a[4] = {a4.x, a4.y, a4.z, a4.w}, b[4] = {b4.x, b4.y, b4.z, b4.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = __dp4a(a[i], b[j], sum[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = first_row + ty + i;
    if (row >= n_rows) break;
    const float of_row = row_scale[row];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (first_out + tx + j < n_out)
        y[row * n_out + first_out + tx + j] = __fmul_rn(__fmul_rn(__int2float_rn(sum[i][j]), of_row), scale);
  }
}

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

void device_ternary_gemm(gpu::StreamHandle stream, int64_t n_rows, int64_t n_out, int64_t n_in, const float* x,
                         const int8_t* w, float scale, void* scratch, float* y) {
  if (n_in % kDeviceTernaryColumns != 0)
    throw Error(ErrorKind::failure, "device_ternary_gemm: rows of " + std::to_string(n_in) + " values, not of whole " +
                                        std::to_string(kDeviceTernaryColumns) + "s");
  if (!aligned16(x) || !aligned16(w) || !aligned16(scratch))
    throw Error(ErrorKind::failure, "device_ternary_gemm: x, w or scratch does not start at a multiple of 16 bytes");
  if (n_rows == 0 || n_out == 0) return;
  auto* q = static_cast<int8_t*>(scratch);
  auto* row_scale = reinterpret_cast<float*>(q + n_rows * n_in);
  gpu::launch("quantize_rows", quantize_rows_kernel, {unsigned(n_rows), kQuantizeThreads, 0, stream}, n_in, x, q,
              row_scale);

  constexpr int64_t kMaxGridRows = 65535;  // gridDim.y
  for (int64_t first = 0; first < n_rows; first += kMaxGridRows * kTile) {
    const int64_t rows = n_rows - first < kMaxGridRows * kTile ? n_rows - first : kMaxGridRows * kTile;
    const dim3 grid(unsigned(gpu::ceil_div(n_out, kTile)), unsigned(gpu::ceil_div(rows, kTile)));
    gpu::launch("ternary", ternary_kernel, {grid, kThreads, 0, stream}, rows, n_out, n_in / 4, q + first * n_in,
                row_scale + first, w, scale, y + first * n_out);
  }
}

}  // namespace ridge
