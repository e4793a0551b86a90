// CUPTI is opened when it is wanted: a program that does not profile runs without the library.
#include "gpu/kernel_times.h"

#include "base/result.h"

#if defined(RIDGE_CUDA) && __has_include(<cupti.h>)
#include <cupti.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>

#include "gpu/shared_library.h"

namespace ridge::gpu {
namespace {

constexpr size_t kBufferBytes = 8 << 20;
constexpr size_t kAlignment = 8;

struct Library {
  void* handle = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
};

const Library& library() {
  static const Library library = [] {
    Library l;
    constexpr const char* kNames[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so",
                                      "/usr/local/cuda/lib64/libcupti.so",
                                      "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"};
    l.handle = open_library(kNames);
    if (!l.handle)
      throw_error(ErrorKind::no_device,
                  "kernels cannot be timed: CUPTI was not found (tried {}); it comes with the CUDA toolkit: install it "
                  "or add its folder to LD_LIBRARY_PATH",
                  fmt::join(kNames, " "));
    const auto find = [&](const char* name, auto& function) { find_function(l.handle, "libcupti", name, function); };
    find("cuptiActivityRegisterCallbacks", l.register_callbacks);
    find("cuptiActivityEnable", l.enable);
    find("cuptiActivityDisable", l.disable);
    find("cuptiActivityFlushAll", l.flush);
    find("cuptiActivityGetNextRecord", l.next_record);
    find("cuptiActivityGetNumDroppedRecords", l.dropped);
    find("cuptiGetResultString", l.result_string);
    return l;
  }();
  return library;
}

void check(CUptiResult code, const char* what) {
  if (code == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  library().result_string(code, &text);
  throw_error(ErrorKind::no_device, "{}: CUPTI says {}", what, text ? text : "?");
}

// CUPTI's callbacks take no argument of ours.
std::mutex records_mutex;
std::vector<KernelTime> records;
uint64_t origin_ns = 0;  // of the first record: doubles keep nanoseconds from there
std::atomic<size_t> n_lost{0};
std::atomic<uint32_t> recorded_device{0};

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *size = *buffer ? kBufferBytes : 0;
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid_bytes) {
  const std::lock_guard lock(records_mutex);
  CUpti_Activity* record = nullptr;
  while (valid_bytes > 0 && library().next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    // Later releases only append to this layout.
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    if (kernel->deviceId != recorded_device) continue;
    if (origin_ns == 0) origin_ns = kernel->start;
    const auto since_origin_us = [](uint64_t ns) { return double(int64_t(ns - origin_ns)) * 1e-3; };
    records.push_back({kernel->name ? kernel->name : "", since_origin_us(kernel->start), since_origin_us(kernel->end)});
  }
  size_t dropped = 0;
  if (library().dropped(context, stream, &dropped) == CUPTI_SUCCESS) n_lost += dropped;
  std::free(buffer);
}

}  // namespace

KernelTimes::KernelTimes(int device) {
  const Library& l = library();
  recorded_device = uint32_t(device);
  check(l.register_callbacks(give_buffer, take_buffer), "timing of kernels");
  check(l.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "timing of kernels");
  const std::lock_guard lock(records_mutex);
  records.clear();
  n_lost = 0;
}

KernelTimes::~KernelTimes() { library().disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }

std::vector<KernelTime> KernelTimes::take() {
  check(library().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "reading the times of kernels");
  const std::lock_guard lock(records_mutex);
  if (n_lost > 0)
    throw_error(ErrorKind::failure, "CUPTI lost the records of {} kernels (profile fewer steps)", n_lost.load());
  std::vector<KernelTime> taken = std::move(records);
  records.clear();
  std::sort(taken.begin(), taken.end(),
            [](const KernelTime& a, const KernelTime& b) { return a.start_us < b.start_us; });
  return taken;
}

}  // namespace ridge::gpu
#else
namespace ridge::gpu {

KernelTimes::KernelTimes(int) {
#if defined(RIDGE_HIP)
  const char* const why =
      "kernels cannot be timed: CUPTI is NVIDIA's and left out of a build for AMD (ridge bench decode times whole "
      "steps)";
#elif defined(RIDGE_CUDA)
  const char* const why =
      "kernels cannot be timed: this build did not find cupti.h (install the CUDA toolkit's CUPTI and build again)";
#else
  const char* const why = "this build has no CUDA, so no kernels to time (build with the preset cuda)";
#endif
  throw Error(ErrorKind::no_device, why);
}
KernelTimes::~KernelTimes() = default;
std::vector<KernelTime> KernelTimes::take() { return {}; }

}  // namespace ridge::gpu
#endif
