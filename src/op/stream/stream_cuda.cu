// Bounded by memory alone: 16-byte loads that are never used twice, enough of them under way (64 KiB per processor and
// more) to cover the latency of memory.
#include "op/stream/stream_cuda.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "gpu/tensor.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr uint32_t kStep = 0x9E3779B9u;
constexpr int kWriteThreads = 512, kCopyThreads = 512, kCopyLoads = 4, kPerProcessor = 4;

__global__ void __launch_bounds__(kWriteThreads) write_kernel(uint4* data, int64_t n) {
  for (int64_t i = int64_t(blockIdx.x) * kWriteThreads + threadIdx.x; i < n; i += int64_t(gridDim.x) * kWriteThreads) {
    const uint32_t word = uint32_t(4 * i);
    __stcs(data + i, make_uint4(word * kStep, (word + 1) * kStep, (word + 2) * kStep, (word + 3) * kStep));
  }
}

template <int kThreads, int kLoads>
__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* data, int64_t n, uint32_t* sums) {
  __shared__ uint32_t parts[kThreads / 32];
  constexpr int kPart = kThreads * kLoads;
  uint32_t sum = 0;
  for (int64_t first = int64_t(blockIdx.x) * kPart; first < n; first += int64_t(gridDim.x) * kPart) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) loaded[u] = __ldcs(data + first + u * kThreads + threadIdx.x);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) sum += loaded[u].x + loaded[u].y + loaded[u].z + loaded[u].w;
  }
  sum = gpu::warp_sum(sum);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint32_t total = 0;
  for (int i = 0; i < kThreads / 32; ++i) total += parts[i];
  atomicAdd(sums + blockIdx.x % kDeviceReadSums, total);
}

__global__ void __launch_bounds__(kCopyThreads) copy_kernel(uint4* to, const uint4* from, int64_t n) {
  constexpr int kPart = kCopyThreads * kCopyLoads;
  for (int64_t first = int64_t(blockIdx.x) * kPart; first < n; first += int64_t(gridDim.x) * kPart) {
    uint4 loaded[kCopyLoads];
#pragma unroll
    for (int u = 0; u < kCopyLoads; ++u) loaded[u] = __ldcs(from + first + u * kCopyThreads + threadIdx.x);
#pragma unroll
    for (int u = 0; u < kCopyLoads; ++u) __stcs(to + first + u * kCopyThreads + threadIdx.x, loaded[u]);
  }
}

__global__ void __launch_bounds__(kCopyThreads) triad_kernel(uint4* out, const uint4* a, const uint4* b, int64_t n) {
  constexpr int kPart = kCopyThreads * kCopyLoads;
  for (int64_t first = int64_t(blockIdx.x) * kPart; first < n; first += int64_t(gridDim.x) * kPart) {
    uint4 of_a[kCopyLoads], of_b[kCopyLoads];
#pragma unroll
    for (int u = 0; u < kCopyLoads; ++u) {
      of_a[u] = __ldcs(a + first + u * kCopyThreads + threadIdx.x);
      of_b[u] = __ldcs(b + first + u * kCopyThreads + threadIdx.x);
    }
#pragma unroll
    for (int u = 0; u < kCopyLoads; ++u)
      __stcs(out + first + u * kCopyThreads + threadIdx.x,
             make_uint4(of_a[u].x + 3 * of_b[u].x, of_a[u].y + 3 * of_b[u].y, of_a[u].z + 3 * of_b[u].z,
                        of_a[u].w + 3 * of_b[u].w));
  }
}

__global__ void nothing_kernel() {
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
}

unsigned n_processors() {
  int device = 0, count = 0;
  gpu::check(cudaGetDevice(&device), "device");
  gpu::check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "processor count");
  return unsigned(count);
}

struct ReadVariant {
  void (*kernel)(const uint4*, int64_t, uint32_t*);
  int threads, loads;
  int per_processor;  ///< 0: a block per part
};
template <int kThreads, int kLoads>
constexpr ReadVariant read_variant(int per_processor) {
  static_assert(kDeviceStreamUnit % (16 * kThreads * kLoads) == 0);
  return {read_kernel<kThreads, kLoads>, kThreads, kLoads, per_processor};
}
constexpr std::string_view kReadNames[] = {"256x4 all", "256x8 8", "256x16 4", "512x4 4",
                                           "512x8 2",   "512x8 4", "1024x4 2", "1024x4 all"};
const ReadVariant kReadVariants[] = {read_variant<256, 4>(0),  read_variant<256, 8>(8), read_variant<256, 16>(4),
                                     read_variant<512, 4>(4),  read_variant<512, 8>(2), read_variant<512, 8>(4),
                                     read_variant<1024, 4>(2), read_variant<1024, 4>(0)};
static_assert(std::size(kReadNames) == std::size(kReadVariants));

void check_unit(const void* data, int64_t bytes) {
  if (bytes > 0 && bytes % kDeviceStreamUnit == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0) return;
  throw Error(ErrorKind::failure, "device stream: " + std::to_string(bytes) + " bytes, not of whole " +
                                      std::to_string(kDeviceStreamUnit) + "s at a multiple of 16");
}

}  // namespace

void device_write(gpu::StreamHandle stream, void* data, int64_t bytes) {
  check_unit(data, bytes);
  gpu::launch("stream write", write_kernel, {n_processors() * kPerProcessor, kWriteThreads, 0, stream},
              static_cast<uint4*>(data), bytes / 16);
}

uint32_t device_written_sum(int64_t bytes) {
  const auto n = uint64_t(bytes / 4);
  return uint32_t((n % 2 == 0 ? n / 2 * (n - 1) : (n - 1) / 2 * n) * kStep);
}

std::span<const std::string_view> device_read_variants() { return kReadNames; }

void device_read(gpu::StreamHandle stream, int variant, const void* data, int64_t bytes, uint32_t* sums) {
  check_unit(data, bytes);
  const ReadVariant& v = kReadVariants[variant];
  const int64_t parts = bytes / (16 * v.threads * v.loads);
  const int64_t blocks =
      v.per_processor == 0 ? parts : std::min<int64_t>(parts, int64_t(n_processors()) * v.per_processor);
  gpu::launch("stream read", v.kernel, {unsigned(blocks), unsigned(v.threads), 0, stream},
              static_cast<const uint4*>(data), bytes / 16, sums);
}

void device_copy(gpu::StreamHandle stream, void* to, const void* from, int64_t bytes) {
  check_unit(to, bytes);
  check_unit(from, bytes);
  gpu::launch("stream copy", copy_kernel, {n_processors() * kPerProcessor, kCopyThreads, 0, stream},
              static_cast<uint4*>(to), static_cast<const uint4*>(from), bytes / 16);
}

void device_triad(gpu::StreamHandle stream, void* out, const void* a, const void* b, int64_t bytes) {
  check_unit(out, bytes);
  check_unit(a, bytes);
  check_unit(b, bytes);
  gpu::launch("stream triad", triad_kernel, {n_processors() * kPerProcessor, kCopyThreads, 0, stream},
              static_cast<uint4*>(out), static_cast<const uint4*>(a), static_cast<const uint4*>(b), bytes / 16);
}

void device_nothing(gpu::StreamHandle stream, bool overlap) {
  gpu::launch("nothing", nothing_kernel, {1, 32, 0, stream, overlap});
}

}  // namespace ridge
