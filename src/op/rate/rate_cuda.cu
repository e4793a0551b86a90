// Eight mmas side by side in every warp, 32 warps a processor, so that none waits for the one before.
#include "op/rate/rate_cuda.h"

#include <iterator>
#include <string>

#include "gpu/tensor.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kThreads = 256, kPerProcessor = 4, kSums = 8, kFloats = 4 * kSums;

struct S8 {
  using Sum = int;
  static constexpr uint32_t kOnes = 0x01010101u;
  static constexpr int kDepth = 32;  ///< of an mma [16 x depth] times [depth x 8]
  static __device__ void multiply(int (&d)[4], const uint32_t (&a)[4], uint32_t b) { gpu::mma_s8(d, a, b, b); }
};
struct F16 {
  using Sum = float;
  static constexpr uint32_t kOnes = 0x3C003C00u;
  static constexpr int kDepth = 16;
  static __device__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b) { gpu::mma_f16(d, a, b, b); }
};
struct BF16 {
  using Sum = float;
  static constexpr uint32_t kOnes = 0x3F803F80u;
  static constexpr int kDepth = 16;
  static __device__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b) { gpu::mma_bf16(d, a, b, b); }
};

__device__ void add_of_warp(uint32_t sum, uint32_t* sums) {
  sum = gpu::warp_sum(sum);
  if (threadIdx.x % 32 == 0) atomicAdd(sums + blockIdx.x % kDeviceRateSums, sum);
}

/// `ones` is an argument, so that the compiler does not know its value.
template <class T>
__global__ void __launch_bounds__(kThreads) tensor_kernel(int rounds, uint32_t ones, uint32_t* sums) {
  const uint32_t a[4] = {ones, ones, ones, ones};
  typename T::Sum d[kSums][4];
#pragma unroll
  for (int j = 0; j < kSums; ++j)
    for (int i = 0; i < 4; ++i) d[j][i] = j;  // unlike each other, so that none stands for all
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) T::multiply(d[j], a, ones);
  }
  uint32_t sum = 0;
#pragma unroll
  for (int j = 0; j < kSums; ++j)
    for (int i = 0; i < 4; ++i) sum += uint32_t(d[j][i]) - uint32_t(j);
  add_of_warp(sum, sums);
}

__global__ void __launch_bounds__(kThreads) float_kernel(int rounds, float one, uint32_t* sums) {
  float d[kFloats];
#pragma unroll
  for (int j = 0; j < kFloats; ++j) d[j] = float(j);  // unlike each other here too
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int j = 0; j < kFloats; ++j) d[j] = fmaf(one, one, d[j]);
  }
  uint32_t sum = 0;
#pragma unroll
  for (int j = 0; j < kFloats; ++j) sum += uint32_t(d[j]) - uint32_t(j);
  add_of_warp(sum, sums);
}

constexpr DeviceRate kRates[] = {
    {"f32", "fma f32"}, {"int8", "mma.sync s8"}, {"bf16", "mma.sync bf16"}, {"f16", "mma.sync f16"}};

int64_t n_blocks() { return int64_t(gpu::multiprocessors()) * kPerProcessor; }

/// Multiply-adds of a round of the whole grid.
int64_t products(int variant) {
  const int64_t threads = n_blocks() * kThreads, warps = threads / 32;
  if (variant == 0) return threads * kFloats;
  return warps * kSums * 16 * 8 * (variant == 1 ? S8::kDepth : variant == 2 ? BF16::kDepth : F16::kDepth);
}

}  // namespace

std::span<const DeviceRate> device_rates() { return kRates; }

void device_rate(gpu::StreamHandle stream, int variant, int rounds, uint32_t* sums) {
  if (variant < 0 || variant >= int(std::size(kRates)) || rounds < 0 || rounds > kMostDeviceRateRounds)
    throw Error(ErrorKind::failure,
                "device rate: no variant " + std::to_string(variant) + " of " + std::to_string(rounds) + " rounds");
  const gpu::Grid grid{unsigned(n_blocks()), kThreads, 0, stream};
  if (variant == 0) gpu::launch("rate f32", float_kernel, grid, rounds, 1.0f, sums);
  else if (variant == 1) gpu::launch("rate s8", tensor_kernel<S8>, grid, rounds, S8::kOnes, sums);
  else if (variant == 2) gpu::launch("rate bf16", tensor_kernel<BF16>, grid, rounds, BF16::kOnes, sums);
  else gpu::launch("rate f16", tensor_kernel<F16>, grid, rounds, F16::kOnes, sums);
}

uint32_t device_rate_sum(int variant, int rounds) { return uint32_t(uint64_t(products(variant)) * uint64_t(rounds)); }
int64_t device_rate_ops(int variant, int rounds) { return 2 * products(variant) * rounds; }

}  // namespace ridge
