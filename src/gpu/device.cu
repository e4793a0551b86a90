#include "gpu/device.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <unordered_map>

#include "gpu/launch.h"
#include "gpu/memory_use.h"
#include "gpu/warpgroup.h"
#include "ridge/error.h"

namespace ridge::gpu {
namespace {

ErrorKind kind_of(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation: return ErrorKind::no_memory;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorDevicesUnavailable: return ErrorKind::no_device;
    default: return ErrorKind::failure;
  }
}

thread_local MemoryOf label = MemoryOf::other;

/// Live allocations. Never destroyed: buffers of static lifetime may be released after it.
struct Ledger {
  std::mutex mutex;
  std::unordered_map<void*, std::pair<int64_t, MemoryOf>> live;
  std::array<Allocations, kMemoryUses> use;
};
Ledger& ledger() {
  static auto* const the_only = new Ledger;  // NOLINT: see above
  return *the_only;
}

}  // namespace

MemoryLabel::MemoryLabel(MemoryOf what) : before_(label) { label = what; }
MemoryLabel::~MemoryLabel() { label = before_; }

std::array<Allocations, kMemoryUses> memory_use() {
  const std::scoped_lock lock(ledger().mutex);
  return ledger().use;
}

DriverMemory driver_memory() {
  check(cudaDeviceSynchronize(), "synchronize");
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "memory query");
  return {int64_t(free), int64_t(total)};
}

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  throw Error(kind_of(code), std::string(kRuntimeName) + " " + what + ": " + cudaGetErrorString(code) + " (" +
                                 cudaGetErrorName(code) + ")");
}

bool device_has_warpgroups() {
#if defined(__CUDA_EMULATED__)
  return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9;
#elif defined(RIDGE_BUILT_FOR_SM90A)
  static const bool has = device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
                          device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
  return has;
#else
  return false;
#endif
}

#ifndef __HIP__
namespace {

/// Properties of the current device that launches depend on.
struct LaunchDevice {
  int number = -1, major = 0, most_window_bytes = 0;
};
const LaunchDevice& launch_device() {
  static thread_local LaunchDevice asked;
  int device = 0;
  check(cudaGetDevice(&device), "device");
  if (device != asked.number) {
    asked = {device, device_attribute(cudaDevAttrComputeCapabilityMajor),
             device_attribute(cudaDevAttrMaxAccessPolicyWindowSize)};
  }
  return asked;
}

}  // namespace

LaunchAttributes::LaunchAttributes(const Grid& grid) {
  if (grid.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes_[n_++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {.x = grid.cluster, .y = 1, .z = 1};
  }
  if (!grid.overlap && grid.weights.empty()) return;
  const LaunchDevice& device = launch_device();
  if (grid.overlap && device.major >= 9) {
    cudaLaunchAttribute& overlap = attributes_[n_++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  const size_t bytes = std::min(grid.weights.size(), size_t(device.most_window_bytes));
  if (bytes > 0) {
    cudaLaunchAttribute& window = attributes_[n_++];
    window.id = cudaLaunchAttributeAccessPolicyWindow;
    window.val.accessPolicyWindow = {.base_ptr = const_cast<std::byte*>(grid.weights.data()),
                                     .num_bytes = bytes,
                                     .hitRatio = 1,
                                     .hitProp = cudaAccessPropertyStreaming,
                                     .missProp = cudaAccessPropertyNormal};
  }
}
#endif

// --- Clusters (warpgroup.h) ---

#ifdef RIDGE_BUILT_FOR_SM90A
namespace {

// 200 KiB: as the kernels that are launched in clusters, no two of these blocks share a multiprocessor.
constexpr int kClusterThreads = 384, kClusterBytes = 200 << 10;
__global__ void __launch_bounds__(kClusterThreads, 1) empty_kernel() {}

}  // namespace

int most_clusters(int blocks) {
  static const auto most = [] {
    std::array<int, kMostCluster + 1> counts{};
    allow_shared_bytes("clusters", empty_kernel, kClusterBytes);
    for (unsigned n = 1; n < counts.size(); ++n) {
      LaunchAttributes attributes({.blocks = n, .threads = kClusterThreads, .cluster = n});
      cudaLaunchConfig_t config = {};
      config.gridDim = n;
      config.blockDim = kClusterThreads;
      config.dynamicSmemBytes = kClusterBytes;
      config.attrs = attributes.data();
      config.numAttrs = attributes.size();
      check(cudaOccupancyMaxActiveClusters(&counts[n], empty_kernel, &config), "clusters");
    }
    return counts;
  }();
  return most[size_t(blocks)];
}
#else
int most_clusters(int blocks) { return multiprocessors() / blocks; }
#endif

void use_device(int index) { check(cudaSetDevice(index), ("device " + std::to_string(index)).c_str()); }

int64_t free_bytes() {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "memory query");
  return int64_t(free);
}

Stream::Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
Stream::~Stream() { cudaStreamDestroy(stream_); }
void Stream::synchronize() const { check(cudaStreamSynchronize(stream_), "synchronize"); }
bool Stream::idle() const {
  const cudaError_t code = cudaStreamQuery(stream_);
  if (code == cudaErrorNotReady) return false;
  check(code, "stream query");
  return true;
}

void* DeviceMemory::allocate(int64_t bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, size_t(bytes)), ("allocation of " + std::to_string(bytes) + " bytes").c_str());
  // cudaMemset works on the default stream, which ours do not wait for.
  check(cudaMemset(data, 0, size_t(bytes)), "memset");
  check(cudaDeviceSynchronize(), "memset");
  Ledger& l = ledger();
  const std::scoped_lock lock(l.mutex);
  l.live[data] = {bytes, label};
  l.use[size_t(label)].add(bytes);
  return data;
}
void DeviceMemory::release(void* data) {
  {
    Ledger& l = ledger();
    const std::scoped_lock lock(l.mutex);
    if (const auto found = l.live.find(data); found != l.live.end()) {
      l.use[size_t(found->second.second)].take_back(found->second.first);
      l.live.erase(found);
    }
  }
  cudaFree(data);
}

void* PinnedMemory::allocate(int64_t bytes) {
  void* data = nullptr;
  check(cudaMallocHost(&data, size_t(bytes)), ("pinned allocation of " + std::to_string(bytes) + " bytes").c_str());
  return data;
}
void PinnedMemory::release(void* data) { cudaFreeHost(data); }

void upload(StreamHandle stream, void* device, const void* host, int64_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(device, host, size_t(bytes), cudaMemcpyHostToDevice, stream), "upload");
}
void download(StreamHandle stream, void* host, const void* device, int64_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(host, device, size_t(bytes), cudaMemcpyDeviceToHost, stream), "download");
}
int most_shared_bytes() { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

void call_host(StreamHandle stream, void (*function)(void*), void* data) {
#ifdef __HIP__
  if (!hipLaunchHostFunc)
    throw Error(ErrorKind::no_device, "this HIP runtime cannot call the host from a stream (ROCm 6 and 7 can)");
#endif
  check(cudaLaunchHostFunc(stream, function, data), "call of the host");
}
void clear(StreamHandle stream, void* device, int64_t bytes) {
  check(cudaMemsetAsync(device, 0, size_t(bytes), stream), "memset");
}
void copy(StreamHandle stream, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, stream), "copy");
}

}  // namespace ridge::gpu
