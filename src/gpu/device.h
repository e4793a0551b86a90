// Device memory, streams and copies, for code that names no CUDA header. Defined in builds with RIDGE_CUDA only.
//
// Everything here throws Error: no_device (driver, device), no_memory (with the size), failure (the rest), each with
// CUDA's own words. Work is queued on a stream and runs in order; an error inside a kernel may show at a later call.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "gpu/runtime_types.h"

namespace ridge::gpu {

using StreamHandle = StreamType*;

/// Shared memory that a block can have: on Hopper and on data centres' GPUs since; on the least of the others from
/// Ampere on (sm_86, sm_89, sm_120; sm_80 has 163 KB); on AMD's.
inline constexpr int kHopperSharedBytes = 227 << 10, kAmpereSharedBytes = 99 << 10, kAmdSharedBytes = 64 << 10;
/// On the current device.
int most_shared_bytes();

/// Makes device `index` the one this thread works on; throws no_device when it is not there.
void use_device(int index);
/// Bytes of device memory that can still be allocated.
int64_t free_bytes();

/// A stream of the current device.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  operator StreamHandle() const { return stream_; }  // NOLINT: implicit on purpose
  /// Waits until everything queued has run.
  void synchronize() const;
  /// Whether the queued work has ended.
  bool idle() const;

 private:
  StreamHandle stream_ = nullptr;
};

/// Bytes that Memory::allocate() gives and Memory::release() takes back.
template <class Memory>
class BufferOf {
 public:
  BufferOf() = default;
  explicit BufferOf(int64_t bytes) : data_(bytes > 0 ? Memory::allocate(bytes) : nullptr), bytes_(bytes) {}
  BufferOf(BufferOf&& other) noexcept { *this = std::move(other); }
  BufferOf& operator=(BufferOf&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~BufferOf() {
    if (data_) Memory::release(data_);
  }

  template <class T = float>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }
  /// At least n elements of T. Growing loses the contents and waits for the device.
  template <class T = float>
  T* ensure(int64_t n) {
    if (n * int64_t(sizeof(T)) > bytes_) *this = BufferOf(n * int64_t(sizeof(T)));
    return as<T>();
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

struct DeviceMemory {
  static void* allocate(int64_t bytes);
  static void release(void* data);
};
struct PinnedMemory {
  static void* allocate(int64_t bytes);
  static void release(void* data);
};
using Buffer = BufferOf<DeviceMemory>;        ///< on the device, zeroed once
using PinnedBuffer = BufferOf<PinnedMemory>;  ///< page-locked host memory, which copies at full speed

/// Copies queued on a stream. From pageable memory `upload` returns when the source may be reused; `download` of any
/// memory is complete after synchronize().
void upload(StreamHandle stream, void* device, const void* host, int64_t bytes);
void download(StreamHandle stream, void* host, const void* device, int64_t bytes);
void clear(StreamHandle stream, void* device, int64_t bytes);
/// From device memory to device memory; the two do not overlap.
void copy(StreamHandle stream, void* to, const void* from, int64_t bytes);

/// Calls function(data) on a thread of the runtime when everything queued before has run; what is queued behind waits
/// for its end. It must not use the device. May be recorded: `data` must outlive the graph then.
void call_host(StreamHandle stream, void (*function)(void* data), void* data);

/// A new buffer with the values of `host`.
template <class T>
Buffer to_device(StreamHandle stream, std::span<const T> host) {
  Buffer buffer(int64_t(host.size_bytes()));
  upload(stream, buffer.as<void>(), host.data(), int64_t(host.size_bytes()));
  return buffer;
}

/// Whether the program holds wgmma code (gpu/warpgroup.h) for the current device.
bool device_has_warpgroups();

}  // namespace ridge::gpu
