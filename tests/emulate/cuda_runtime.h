// CUDA on the CPU, for tests: device code compiled by the host compiler runs here, so that kernels are tested on
// machines without a GPU. It stands in for CUDA's own header of this name.
//
// A block runs on the calling thread, its threads as fibers; blocks follow one another. Barriers, warp collectives and
// dynamic shared memory behave as on a GPU, and what a GPU leaves to chance is made to hurt: the order of warps and of
// blocks is shuffled, shared memory starts as NaN, asynchronous copies land only when they are waited for, and device
// memory ends at a page that nobody may touch and is closed when it is freed. Sums of NCCL wait for the other devices
// while the host goes on (emulated_nccl.cpp). It says nothing about time. Missing: anything where a block waits for
// another one that has not begun.
//
// There are several devices, which threads of the host work on at the same time, each with a state of its own here. A
// kernel may wait for packets (gpu/packet.h) of another device: while all threads of a block do, further blocks of its
// grid begin. Such a kernel may not use static shared memory, which the blocks of a host thread have in common.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>  // uses __noinline__ as an attribute
#include <string>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __shared__ static thread_local
#define __constant__ static
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __CUDA_EMULATED__ 1

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define RIDGE_VECTOR(type, name, bytes)                            \
  struct alignas(2 * bytes) name##2 {                              \
    type x, y;                                                     \
  };                                                               \
  struct alignas(4 * bytes > 16 ? 16 : 4 * bytes) name##4 {        \
    type x, y, z, w;                                               \
  };                                                               \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
RIDGE_VECTOR(signed char, char, 1)
RIDGE_VECTOR(int, int, 4)
RIDGE_VECTOR(unsigned, uint, 4)
RIDGE_VECTOR(float, float, 4)
RIDGE_VECTOR(double, double, 8)
#undef RIDGE_VECTOR

/// Of the running fiber.
inline constinit thread_local uint3 threadIdx{}, blockIdx{};
inline constinit thread_local dim3 blockDim, gridDim;

namespace emulate {

void* dynamic_shared();

void sync_block();
/// Runs `combine(slots)` once all 32 lanes of the warp have come with theirs.
void warp_collective(void* slot, void (*combine)(void* const* slots));
int sync_block_and(int value);

/// An asynchronous copy of this thread: done by wait_copies() only.
void start_copy(void* to, const void* from, int bytes);
void commit_copies();
void wait_copies(int groups_left);
/// A copy that belongs to a word of the block's shared memory, which counts copies that have landed: it lands when a
/// thread waits for it. A second one that starts before ends the program.
void start_piece(unsigned long long* arrival, void* to, const void* from, int bytes);
void wait_for_piece(unsigned long long* arrival, unsigned phase);
/// The same word with several pieces, which land in any order: how many bytes a phase has, and the pieces.
void expect_pieces(unsigned long long* arrival, int bytes);
void add_piece(unsigned long long* arrival, void* to, const void* from, int bytes);
/// A word whose phases end when `count` threads have arrived.
void set_up_count(unsigned long long* arrival, int count);
void arrive(unsigned long long* arrival);
/// A barrier of some threads of the block.
void sync_threads(int barrier, int n_threads);

/// Of a cluster: this block's place, a barrier of all threads that have not ended, and a place in a block's memory.
int cluster_rank();
void sync_cluster();
const void* peer_shared(const void* own, int rank);

/// A packet is under way until this host thread has nothing better to do, or its grid ends.
void send_packet(uint4* at, uint4 packet);
/// The calling thread looks again later for what another device sends.
void wait_for_packet();

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, unsigned cluster, const std::function<void()>& thread);
/// Runs `work` now, behind work of the stream that waits for another device (emulated_streams.h), or records it when
/// the stream is being captured.
void on_stream(void* stream, std::function<void()> work);

/// All lanes hand over an In and get back an Out, computed by combine(const In* const (&)[32], Out* const (&)[32]).
template <class In, class Out, class F>
Out collective(const In& in, F) {
  struct Slot {
    In in;
    Out out;
  } slot{in, Out{}};
  warp_collective(&slot, [](void* const* slots) {
    const In* ins[32];
    Out* outs[32];
    for (int lane = 0; lane < 32; ++lane) {
      auto* s = static_cast<Slot*>(slots[lane]);
      ins[lane] = &s->in;
      outs[lane] = &s->out;
    }
    F()(ins, outs);
  });
  return slot.out;
}

}  // namespace emulate

// --- Device functions ---

inline void __syncthreads() { emulate::sync_block(); }
inline int __syncthreads_and(int value) { return emulate::sync_block_and(value); }
inline int __syncthreads_or(int value) { return !emulate::sync_block_and(!value); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

namespace emulate {
template <class T>
struct ShuffleIn {
  T value;
  int lane;
};
}  // namespace emulate
template <class T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  const int self = int(threadIdx.x % 32);
  return emulate::collective<emulate::ShuffleIn<T>, T>(
      emulate::ShuffleIn<T>{value, self / width * width + lane % width}, [](auto& in, auto& out) {
        for (int i = 0; i < 32; ++i) *out[i] = in[in[i]->lane]->value;
      });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int step) {
  return __shfl_sync(mask, value, int(threadIdx.x % 32) ^ step);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int step) {
  const int lane = int(threadIdx.x % 32) + step;
  return __shfl_sync(mask, value, lane < 32 ? lane : lane - step);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int step) {
  const int lane = int(threadIdx.x % 32) - step;
  return __shfl_sync(mask, value, lane >= 0 ? lane : lane + step);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  return emulate::collective<int, unsigned>(predicate, [](auto& in, auto& out) {
    unsigned bits = 0;
    for (int i = 0; i < 32; ++i) bits |= unsigned(*in[i] != 0) << i;
    for (int i = 0; i < 32; ++i) *out[i] = bits;
  });
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == ~0u; }
inline void __syncwarp(unsigned = ~0u) { (void)__ballot_sync(~0u, 0); }

inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return emulate::collective<unsigned, unsigned>(value, [](auto& in, auto& out) {
    unsigned top = 0;
    for (int i = 0; i < 32; ++i) top = *in[i] > top ? *in[i] : top;
    for (int i = 0; i < 32; ++i) *out[i] = top;
  });
}

inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += int8_t(a >> i) * int8_t(b >> i);
  return sum;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i) & 7u;
    result |= (unsigned(bytes >> (8 * s)) & 255u) << (8 * i);
  }
  return result;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __int2float_rn(int a) { return float(a); }
inline int __float2int_rn(float a) {
  if (std::isnan(a)) return 0;
  if (a >= 2147483648.0f) return INT32_MAX;
  if (a < -2147483648.0f) return INT32_MIN;
  return int(std::nearbyint(a));
}
inline float __int_as_float(int a) {
  float f;
  std::memcpy(&f, &a, 4);
  return f;
}
inline int __float_as_int(float a) {
  int i;
  std::memcpy(&i, &a, 4);
  return i;
}
inline float __uint_as_float(unsigned a) { return __int_as_float(int(a)); }
inline unsigned __float_as_uint(float a) { return unsigned(__float_as_int(a)); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
  return reversed;
}
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }

template <class T, class U>
T atomicAdd(T* at, U value) {
  const T old = *at;
  *at = old + T(value);
  return old;
}
template <class T, class U>
T atomicMax(T* at, U value) {
  const T old = *at;
  if (T(value) > old) *at = T(value);
  return old;
}
template <class T, class U>
T atomicAnd(T* at, U value) {
  const T old = *at;
  *at &= T(value);
  return old;
}
template <class T, class U>
T atomicOr(T* at, U value) {
  const T old = *at;
  *at |= T(value);
  return old;
}
template <class T, class U>
T atomicExch(T* at, U value) {
  const T old = *at;
  *at = T(value);
  return old;
}
template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
template <class T>
T __ldcs(const T* at) {
  return *at;
}
template <class T>
void __stcs(T* at, T value) {
  *at = value;
}

using std::isfinite;
using std::isinf;
using std::isnan;

inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }

// --- The runtime's API, as much as Ridge uses ---

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorNotReady = 600,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorDevicesUnavailable = 46
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrL2CacheSize,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrMaxAccessPolicyWindowSize
};
enum cudaDeviceP2PAttr { cudaDevP2PAttrNativeAtomicSupported };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDefault = 0, cudaEventDisableTiming = 2;

struct CUstream_st;
using cudaStream_t = CUstream_st*;
struct CUevent_st;
using cudaEvent_t = CUevent_st*;
struct CUgraph_st;
using cudaGraph_t = CUgraph_st*;
struct CUgraphExec_st;
using cudaGraphExec_t = CUgraphExec_st*;

struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount, l2CacheSize;
  size_t totalGlobalMem, sharedMemPerBlockOptin;
};

inline const char* cudaGetErrorString(cudaError_t) { return "emulated error"; }
inline const char* cudaGetErrorName(cudaError_t) { return "emulated"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceCanAccessPeer(int* can, int from, int to);
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to);
cudaError_t cudaDeviceEnablePeerAccess(int to, unsigned flags);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMalloc(void** data, size_t bytes);
template <class T>
cudaError_t cudaMalloc(T** data, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(data), bytes);
}
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, size_t bytes);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemset(void* data, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t allow_shared_bytes(int bytes);
template <class F>
cudaError_t cudaFuncSetAttribute(F*, cudaFuncAttribute attribute, int value) {
  return attribute == cudaFuncAttributeMaxDynamicSharedMemorySize ? allow_shared_bytes(value) : cudaSuccess;
}
template <class F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F*, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}

enum cudaLaunchAttributeID {
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeAccessPolicyWindow,
  cudaLaunchAttributeClusterDimension
};
enum cudaAccessProperty { cudaAccessPropertyNormal, cudaAccessPropertyStreaming };
struct cudaAccessPolicyWindow {
  void* base_ptr;
  size_t num_bytes;
  float hitRatio;
  cudaAccessProperty hitProp, missProp;
};
union cudaLaunchAttributeValue {
  int programmaticStreamSerializationAllowed;
  cudaAccessPolicyWindow accessPolicyWindow;
  struct {
    unsigned x, y, z;
  } clusterDim;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
namespace emulate {
/// Arguments as they lie in the memory of a launch: each at a multiple of its alignment.
template <class... P>
std::string argument_bytes(const std::tuple<P...>& values) {
  std::string bytes;
  const auto append = [&]<class T>(const T& value) {
    bytes.resize((bytes.size() + alignof(T) - 1) / alignof(T) * alignof(T));
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  };
  std::apply([&](const auto&... value) { (append(value), ...); }, values);
  return bytes;
}
/// Blocks of a cluster, neighbours along x; 0 for what no GPU takes.
unsigned cluster_of(const cudaLaunchConfig_t& config);
/// Whether the window of a launch, if it has one, lies in one allocation.
bool has_valid_window(const cudaLaunchConfig_t& config);
/// Whether there is a library that runs kernels elsewhere (launcher.h), and whether it ran this one.
bool has_launcher();
bool run_elsewhere(const void* kernel, const cudaLaunchConfig_t& config, const std::string& arguments);
}  // namespace emulate

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... args) {
  if (!emulate::has_valid_window(*config)) return cudaErrorInvalidValue;
  const std::tuple<P...> values(static_cast<P>(args)...);  // by value, as a launch takes them
  const unsigned cluster = emulate::cluster_of(*config);
  if (cluster == 0) return cudaErrorInvalidValue;
  emulate::on_stream(config->stream, [=, c = *config] {
    if (emulate::has_launcher() &&
        emulate::run_elsewhere(reinterpret_cast<const void*>(kernel), c, emulate::argument_bytes(values)))
      return;
    emulate::run_grid(c.gridDim, c.blockDim, c.dynamicSmemBytes, cluster, [&] { std::apply(kernel, values); });
  });
  return cudaSuccess;
}
