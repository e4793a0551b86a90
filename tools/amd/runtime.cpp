// HIP's runtime without a GPU: the functions that a HIP build of Ridge calls. A program that finds this library in the place
// of libamdhip64 runs whole on a host without a card; each launch goes to the library of RIDGE_LAUNCHER (launcher.c), which runs
// the program's own device code. Work is done when it is asked for; recorded streams keep it for their graph.
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../../tests/emulate/launcher.h"

// Opaque in HIP's headers.
struct ihipGraph {
  std::vector<std::function<void()>> work;
};
struct hipGraphExec {
  ihipGraph graph;
};
struct ihipStream_t {
  ihipGraph* recorded = nullptr;
};
struct ihipEvent_t {
  ihipGraph* recorded = nullptr;
  std::chrono::steady_clock::time_point time;
};

namespace {

constexpr size_t kMemory = size_t(16) << 30, kPage = 4096;
constexpr int kProcessors = 4;

/// A kernel, by the address of its host function.
struct Kernel {
  const void* bundle;
  const char* name;
};
struct Runtime {
  std::mutex mutex;
  std::map<const void*, Kernel> kernels;
  std::set<hipStream_t> streams;
  std::map<void*, std::pair<void*, size_t>> memory;  // allocation: its mapping
  size_t used = 0;
};
Runtime& runtime() {
  static auto* const the_only = new Runtime;
  return *the_only;
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "amd_run: %s\n", what.c_str());
  std::exit(70);
}

ridge_run launcher() {
  static const ridge_run run = [] {
    const char* file = std::getenv("RIDGE_LAUNCHER");
    void* opened = file ? dlopen(file, RTLD_NOW | RTLD_GLOBAL) : nullptr;
    if (!opened) fail("RIDGE_LAUNCHER names no library that opens");
    return reinterpret_cast<ridge_run>(dlsym(opened, "ridge_run"));
  }();
  return run;
}

/// Runs the work, or keeps it for the graph that the stream records.
hipError_t submit(hipStream_t stream, std::function<void()> work) {
  if (stream && stream->recorded) stream->recorded->work.push_back(std::move(work));
  else work();
  return hipSuccess;
}

const std::pair<hipError_t, std::pair<const char*, const char*>> kErrors[] = {
    {hipSuccess, {"hipSuccess", "no error"}},
    {hipErrorInvalidValue, {"hipErrorInvalidValue", "invalid argument"}},
    {hipErrorOutOfMemory, {"hipErrorOutOfMemory", "out of memory"}},
    {hipErrorInvalidDevice, {"hipErrorInvalidDevice", "invalid device ordinal"}},
};
std::pair<const char*, const char*> words(hipError_t code) {
  for (const auto& [known, text] : kErrors)
    if (known == code) return text;
  return {"hipErrorUnknown", "unknown error"};
}

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

extern "C" {

// What clang's host code calls before main().

void** __hipRegisterFatBinary(const void* data) {
  struct Wrapper {
    uint32_t magic, version;
    const void* bundle;
  };
  return static_cast<void**>(const_cast<void*>(static_cast<const Wrapper*>(data)->bundle));
}
void __hipUnregisterFatBinary(void**) {}
void __hipRegisterFunction(void** bundle, const void* host, char*, const char* name, unsigned, void*, void*, void*,
                           void*, int*) {
  const std::scoped_lock lock(runtime().mutex);
  runtime().kernels[host] = {bundle, name};
}
void __hipRegisterVar(void**, void*, char*, char* name, int, size_t, int, int) {
  fail(std::string(name) + " is a variable of the device, which this runtime does not know");
}
// Of the notation <<< >>>, which Ridge does not use.
hipError_t __hipPushCallConfiguration(dim3, dim3, size_t, hipStream_t) { return hipErrorInvalidValue; }
hipError_t __hipPopCallConfiguration(dim3*, dim3*, size_t*, hipStream_t*) { return hipErrorInvalidValue; }

// Launches.

hipError_t hipLaunchKernel(const void* host, dim3 grid, dim3 block, void** places, size_t shared_bytes,
                           hipStream_t stream) {
  Kernel kernel = {};
  {
    const std::scoped_lock lock(runtime().mutex);
    const auto found = runtime().kernels.find(host);
    if (found == runtime().kernels.end()) return hipErrorInvalidDeviceFunction;
    kernel = found->second;
  }
  std::vector<std::byte> arguments(4096);
  ridge_launch launch{.kernel = host,
                      .grid = {grid.x, grid.y, grid.z},
                      .block = {block.x, block.y, block.z},
                      .shared_bytes = uint32_t(shared_bytes),
                      .argument_bytes = 0,
                      .arguments = nullptr,
                      .bundle = kernel.bundle,
                      .name = kernel.name,
                      .places = places,
                      .packed = arguments.data()};
  arguments.resize(size_t(launcher()(&launch)));
  launch.packed = nullptr, launch.places = nullptr;
  return submit(stream, [launch, arguments]() mutable {
    launch.arguments = arguments.data();
    launch.argument_bytes = uint32_t(arguments.size());
    launcher()(&launch);
  });
}
hipError_t hipFuncSetAttribute(const void*, hipFuncAttribute, int bytes) {
  return bytes <= 64 << 10 ? hipSuccess : hipErrorInvalidValue;
}
hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* data) {
  return submit(stream, [=] { function(data); });
}

// Devices.

hipError_t hipGetDeviceCount(int* n) { return *n = 1, hipSuccess; }
hipError_t hipGetDevice(int* device) { return *device = 0, hipSuccess; }
hipError_t hipSetDevice(int device) { return device == 0 ? hipSuccess : hipErrorInvalidDevice; }
hipError_t hipDeviceSynchronize() { return hipSuccess; }
hipError_t hipDriverGetVersion(int* version) { return *version = HIP_VERSION, hipSuccess; }
hipError_t hipRuntimeGetVersion(int* version) { return *version = HIP_VERSION, hipSuccess; }
hipError_t hipDeviceGetPCIBusId(char* id, int bytes, int) {
  return std::snprintf(id, size_t(bytes), "0000:00:00.0"), hipSuccess;
}
hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int) {
  switch (attribute) {
    case hipDeviceAttributeMultiprocessorCount: *value = kProcessors; return hipSuccess;
    case hipDeviceAttributeMaxSharedMemoryPerBlock: *value = 64 << 10; return hipSuccess;
    default: return hipErrorInvalidValue;
  }
}
hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int) {
  *properties = {};
  const char* target = std::getenv("RIDGE_AMD_TARGET");
  std::snprintf(properties->name, sizeof properties->name, "%s in an emulator", target ? target : "");
  std::snprintf(properties->gcnArchName, sizeof properties->gcnArchName, "%s", target ? target : "");
  properties->totalGlobalMem = kMemory;
  properties->multiProcessorCount = kProcessors;
  properties->major = 11;
  return hipSuccess;
}
const char* hipGetErrorName(hipError_t code) { return words(code).first; }
const char* hipGetErrorString(hipError_t code) { return words(code).second; }
hipError_t hipGetLastError() { return hipSuccess; }

// Memory: an allocation ends where a page that nobody may touch begins.

hipError_t hipMalloc(void** data, size_t bytes) {
  const size_t rounded = (std::max(bytes, size_t(1)) + 255) / 256 * 256, mapped = whole_pages(rounded);
  const std::scoped_lock lock(runtime().mutex);
  if (runtime().used + rounded > kMemory) return hipErrorOutOfMemory;
  void* const map =
      mmap(nullptr, mapped + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return hipErrorOutOfMemory;
  mprotect(static_cast<std::byte*>(map) + mapped, kPage, PROT_NONE);
  *data = static_cast<std::byte*>(map) + (mapped - rounded);
  runtime().memory[*data] = {map, mapped + kPage};
  runtime().used += rounded;
  return hipSuccess;
}
hipError_t hipFree(void* data) {
  const std::scoped_lock lock(runtime().mutex);
  const auto found = runtime().memory.find(data);
  if (found == runtime().memory.end()) return data ? hipErrorInvalidValue : hipSuccess;
  const auto [map, bytes] = found->second;
  runtime().used -= size_t(static_cast<std::byte*>(map) + bytes - kPage - static_cast<std::byte*>(data));
  munmap(map, bytes);
  runtime().memory.erase(found);
  return hipSuccess;
}
hipError_t hipHostMalloc(void** data, size_t bytes, unsigned) {
  *data = std::aligned_alloc(kPage, whole_pages(std::max(bytes, size_t(1))));
  return *data ? hipSuccess : hipErrorOutOfMemory;
}
hipError_t hipHostFree(void* data) { return std::free(data), hipSuccess; }
hipError_t hipMemGetInfo(size_t* free, size_t* total) {
  const std::scoped_lock lock(runtime().mutex);
  return *free = kMemory - runtime().used, *total = kMemory, hipSuccess;
}
hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind, hipStream_t stream) {
  return submit(stream, [=] { std::memmove(to, from, bytes); });
}
hipError_t hipMemsetAsync(void* data, int value, size_t bytes, hipStream_t stream) {
  return submit(stream, [=] { std::memset(data, value, bytes); });
}
hipError_t hipMemset(void* data, int value, size_t bytes) { return std::memset(data, value, bytes), hipSuccess; }

// Streams and graphs. A stream that waits for an event of a recorded one is recorded into the same graph.

hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned) {
  const std::scoped_lock lock(runtime().mutex);
  runtime().streams.insert(*stream = new ihipStream_t);
  return hipSuccess;
}
hipError_t hipStreamDestroy(hipStream_t stream) {
  const std::scoped_lock lock(runtime().mutex);
  runtime().streams.erase(stream);
  delete stream;
  return hipSuccess;
}
hipError_t hipStreamSynchronize(hipStream_t) { return hipSuccess; }
hipError_t hipStreamQuery(hipStream_t) { return hipSuccess; }
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  if (event->recorded) stream->recorded = event->recorded;
  return hipSuccess;
}
hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode) {
  stream->recorded = new ihipGraph;
  return hipSuccess;
}
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
  *graph = stream->recorded;
  const std::scoped_lock lock(runtime().mutex);
  for (const hipStream_t one : runtime().streams)
    if (one->recorded == *graph) one->recorded = nullptr;
  return hipSuccess;
}
hipError_t hipGraphInstantiate(hipGraphExec_t* exec, hipGraph_t graph, hipGraphNode_t*, char*, size_t) {
  *exec = new hipGraphExec{*graph};
  return hipSuccess;
}
hipError_t hipGraphLaunch(hipGraphExec_t exec, hipStream_t stream) {
  return submit(stream, [exec] {
    for (auto& one : exec->graph.work) one();
  });
}
hipError_t hipGraphDestroy(hipGraph_t graph) { return delete graph, hipSuccess; }
hipError_t hipGraphExecDestroy(hipGraphExec_t exec) { return delete exec, hipSuccess; }

hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned) { return *event = new ihipEvent_t, hipSuccess; }
hipError_t hipEventDestroy(hipEvent_t event) { return delete event, hipSuccess; }
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  event->recorded = stream ? stream->recorded : nullptr;
  event->time = std::chrono::steady_clock::now();
  return hipSuccess;
}
hipError_t hipEventQuery(hipEvent_t) { return hipSuccess; }
hipError_t hipEventSynchronize(hipEvent_t) { return hipSuccess; }
hipError_t hipEventElapsedTime(float* ms, hipEvent_t start, hipEvent_t stop) {
  return *ms = std::chrono::duration<float, std::milli>(stop->time - start->time).count(), hipSuccess;
}

}  // extern "C"
