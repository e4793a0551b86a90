#include "gpu/launch.h"
#include "op/norm_rope/glu_cuda.h"
#include "op/norm_rope/norm_guard_cuda.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {
namespace {

constexpr int kThreads = 256;

/// Blocks for n elements, one a thread.
unsigned blocks(int64_t n) { return unsigned(gpu::ceil_div(n, kThreads)); }

__device__ int64_t element() { return int64_t(blockIdx.x) * kThreads + threadIdx.x; }

/// Sum of the squares of a row; double where the reference is double.
__device__ double sum_squares(int64_t n, const float* x) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += double(x[i]) * x[i];
  return gpu::block_sum<kThreads>(sum);
}

/// 1 / the root mean square of a row.
__device__ double norm_factor(int64_t n, const float* x, float eps) {
  return 1.0 / sqrt(sum_squares(n, x) / double(n) + eps);
}

/// One block a row.
__global__ void rms_norm_kernel(int64_t n, const float* x, const float* weight, float eps, float* y) {
  x += int64_t(blockIdx.x) * n;
  y += int64_t(blockIdx.x) * n;
  const double factor = norm_factor(n, x, eps);
  for (int64_t i = threadIdx.x; i < n; i += kThreads) y[i] = float(x[i] * factor * weight[i]);
}

__global__ void layer_norm_kernel(int64_t n, const float* x, const float* weight, float eps, float* y) {
  x += int64_t(blockIdx.x) * n;
  y += int64_t(blockIdx.x) * n;
  double sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += x[i];
  const float mean = float(gpu::block_sum<kThreads>(sum) / double(n));
  for (int64_t i = threadIdx.x; i < n; i += kThreads) squares += double(x[i] - mean) * (x[i] - mean);
  const double factor = 1.0 / sqrt(gpu::block_sum<kThreads>(squares) / double(n) + eps);
  for (int64_t i = threadIdx.x; i < n; i += kThreads) y[i] = float((x[i] - mean) * factor * weight[i]);
}

__global__ void sum_squares_kernel(int64_t n, const float* x, float* sums) {
  const double sum = sum_squares(n, x + int64_t(blockIdx.x) * n);
  if (threadIdx.x == 0) sums[blockIdx.x] = float(sum);
}

__global__ void rms_norm_part_kernel(int64_t n, int64_t n_whole, const float* sums, const float* weight, float eps,
                                     float* x) {
  x += int64_t(blockIdx.x) * n;
  const float sum = sums[blockIdx.x];
  const double factor = guarded_factor(sum, 1.0f) / sqrt(double(sum) / double(n_whole) + eps);
  for (int64_t i = threadIdx.x; i < n; i += kThreads) x[i] = float(x[i] * factor * weight[i]);
}

__global__ void add_normed_kernel(int64_t n, float* x, const float* y, const float* weight, float eps, float scale) {
  x += int64_t(blockIdx.x) * n;
  y += int64_t(blockIdx.x) * n;
  const double factor = norm_factor(n, y, eps);
  for (int64_t i = threadIdx.x; i < n; i += kThreads) x[i] = fmaf(scale, float(y[i] * factor * weight[i]), x[i]);
}

__global__ void swiglu_kernel(int64_t n, float* gate, const float* up) {
  const int64_t i = element();
  if (i < n) gate[i] = float(gate[i] / (1.0 + exp(-double(gate[i]))) * up[i]);
}

__global__ void relu2_glu_kernel(int64_t n, float* gate, const float* up) {
  const int64_t i = element();
  if (i >= n) return;
  const float positive = gate[i] < 0 ? 0 : gate[i];  // keeps NaN
  gate[i] = __fmul_rn(__fmul_rn(positive, positive), up[i]);
}

__global__ void relu2_kernel(int64_t n, float* x) {
  const int64_t i = element();
  if (i < n && !(x[i] < 0)) x[i] = __fmul_rn(x[i], x[i]);  // keeps NaN
  else if (i < n) x[i] = 0;
}

__global__ void scale_kernel(int64_t n, float* x, const float* factor) {
  const int64_t i = element();
  if (i < n) x[i] *= *factor;
}

__global__ void soft_cap_kernel(int64_t n, float* x, float cap) {
  const int64_t i = element();
  if (i < n) x[i] = cap * tanhf(x[i] / cap);
}

__global__ void gelu_glu_kernel(int64_t n, float* gate, const float* up) {
  const int64_t i = element();
  if (i < n) gate[i] = gelu_of(gate[i]) * up[i];
}

__global__ void clamped_swiglu_kernel(int64_t n, float* gate, const float* up) {
  const int64_t i = element();
  if (i < n) gate[i] = clamped_swiglu_of(gate[i], up[i]);
}

__global__ void sigmoid_gate_kernel(int64_t total, int64_t n, const float* gate, int64_t pitch, float* x) {
  const int64_t i = element();
  if (i < total) x[i] /= 1 + expf(-gate[i / n * pitch + i % n]);
}

__global__ void add_kernel(int64_t n, float* x, const float* y, float factor) {
  const int64_t i = element();
  if (i < n) x[i] = fmaf(factor, y[i], x[i]);
}

__global__ void add_bias_kernel(int64_t total, int64_t n, float* x, const float* bias) {
  const int64_t i = element();
  if (i < total) x[i] += bias[i % n];
}

__global__ void gather_rows_kernel(int64_t total, int64_t n, const int32_t* rows, const float* x, float* y) {
  const int64_t i = element();
  if (i < total) y[i] = x[rows[i / n] * n + i % n];
}

__global__ void copy_columns_kernel(int64_t total, int64_t n, const float* x, int64_t pitch, float* y) {
  const int64_t i = element();
  if (i < total) y[i] = x[i / n * pitch + i % n];
}

__global__ void sort_columns_kernel(int64_t total, int64_t n, const int32_t* order, const float* x, float* y) {
  const int64_t i = element();
  if (i < total) y[i] = x[i / n * n + order[i % n]];
}

}  // namespace

void device_rms_norm(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, const float* weight,
                     float eps, float* y) {
  gpu::launch("rms_norm", rms_norm_kernel, {unsigned(n_rows), kThreads, 0, stream}, n, x, weight, eps, y);
}

void device_layer_norm(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, const float* weight,
                       float eps, float* y) {
  gpu::launch("layer_norm", layer_norm_kernel, {unsigned(n_rows), kThreads, 0, stream}, n, x, weight, eps, y);
}

void device_sum_squares(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, float* sums) {
  gpu::launch("sum_squares", sum_squares_kernel, {unsigned(n_rows), kThreads, 0, stream}, n, x, sums);
}

void device_rms_norm_part(gpu::StreamHandle stream, int64_t n_rows, int64_t n, int64_t n_whole, const float* sums,
                          const float* weight, float eps, float* x) {
  gpu::launch("rms_norm_part", rms_norm_part_kernel, {unsigned(n_rows), kThreads, 0, stream}, n, n_whole, sums, weight,
              eps, x);
}

void device_swiglu(gpu::StreamHandle stream, int64_t n, float* gate, const float* up) {
  gpu::launch("swiglu", swiglu_kernel, {blocks(n), kThreads, 0, stream}, n, gate, up);
}

void device_relu2_glu(gpu::StreamHandle stream, int64_t n, float* gate, const float* up) {
  if (n == 0) return;
  gpu::launch("relu2_glu", relu2_glu_kernel, {blocks(n), kThreads, 0, stream}, n, gate, up);
}

void device_relu2(gpu::StreamHandle stream, int64_t n, float* x) {
  if (n == 0) return;
  gpu::launch("relu2", relu2_kernel, {blocks(n), kThreads, 0, stream}, n, x);
}

void device_scale(gpu::StreamHandle stream, int64_t n, float* x, const float* factor) {
  gpu::launch("scale", scale_kernel, {blocks(n), kThreads, 0, stream}, n, x, factor);
}

void device_soft_cap(gpu::StreamHandle stream, int64_t n, float* x, float cap) {
  gpu::launch("soft_cap", soft_cap_kernel, {blocks(n), kThreads, 0, stream}, n, x, cap);
}

void device_gelu_glu(gpu::StreamHandle stream, int64_t n, float* gate, const float* up) {
  gpu::launch("gelu_glu", gelu_glu_kernel, {blocks(n), kThreads, 0, stream}, n, gate, up);
}

void device_clamped_swiglu(gpu::StreamHandle stream, int64_t n, float* gate, const float* up) {
  gpu::launch("clamped_swiglu", clamped_swiglu_kernel, {blocks(n), kThreads, 0, stream}, n, gate, up);
}

void device_sigmoid_gate(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* gate, int64_t pitch,
                         float* x) {
  gpu::launch("sigmoid_gate", sigmoid_gate_kernel, {blocks(n_rows * n), kThreads, 0, stream}, n_rows * n, n, gate,
              pitch, x);
}

void device_add(gpu::StreamHandle stream, int64_t n, float* x, const float* y, float factor) {
  gpu::launch("add", add_kernel, {blocks(n), kThreads, 0, stream}, n, x, y, factor);
}

void device_add_normed(gpu::StreamHandle stream, int64_t n_rows, int64_t n, float* x, const float* y,
                       const float* weight, float eps, float factor) {
  gpu::launch("add_normed", add_normed_kernel, {unsigned(n_rows), kThreads, 0, stream}, n, x, y, weight, eps, factor);
}

void device_add_bias(gpu::StreamHandle stream, int64_t n_rows, int64_t n, float* x, const float* bias) {
  gpu::launch("add_bias", add_bias_kernel, {blocks(n_rows * n), kThreads, 0, stream}, n_rows * n, n, x, bias);
}

void device_copy_columns(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const float* x, int64_t pitch, float* y) {
  gpu::launch("copy_columns", copy_columns_kernel, {blocks(n_rows * n), kThreads, 0, stream}, n_rows * n, n, x, pitch,
              y);
}

void device_sort_columns(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const int32_t* order, const float* x,
                         float* y) {
  gpu::launch("sort_columns", sort_columns_kernel, {blocks(n_rows * n), kThreads, 0, stream}, n_rows * n, n, order, x,
              y);
}

void device_gather_rows(gpu::StreamHandle stream, int64_t n_rows, int64_t n, const int32_t* rows, const float* x,
                        float* y) {
  gpu::launch("gather_rows", gather_rows_kernel, {blocks(n_rows * n), kThreads, 0, stream}, n_rows * n, n, rows, x, y);
}

}  // namespace ridge
