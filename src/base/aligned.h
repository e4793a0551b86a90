// A growable 64-byte-aligned buffer for packed weights, caches and scratch. Large ones ask for huge pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace ridge {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  /// Zeroed memory of `bytes`; throws Error(no_memory) with the size when there is none.
  explicit AlignedBuffer(int64_t bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Bytes of all buffers that this process has now, touched or not.
  static int64_t all_bytes();

  /// At least n elements of T; contents are lost when it grows.
  template <class T>
  T* ensure(int64_t n) {
    const int64_t needed = n * int64_t(sizeof(T));
    if (needed > bytes_) *this = AlignedBuffer(grown(needed));
    return as<T>();
  }
  /// Bytes that ensure() allocates where `needed` are more than there are.
  static int64_t grown(int64_t needed) { return needed + needed / 2; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void release();

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace ridge
