// Streams over plain memory: what the machine's memory gives when nothing is computed. The ceilings that every
// bytes-bound op is held against; decode is read-mostly, so `read` is its ceiling.
#pragma once

#include "op/cpu.h"

namespace ridge {

/// Kernels over one thread's part; sizes in bytes, multiples of kStreamUnit, pointers 64-byte aligned. Those past the
/// caches may be null.
struct StreamKernels {
  /// Loads every byte; the result depends on all of them, so nothing can be left out.
  uint64_t (*read)(const std::byte* in, int64_t n);
  /// Ordinary stores: a line is first read into the cache.
  void (*write)(std::byte* out, int64_t n, uint8_t value);
  /// Stores past the caches.
  void (*write_nt)(std::byte* out, int64_t n, uint8_t value);
  void (*copy)(const std::byte* in, std::byte* out, int64_t n);
  void (*copy_nt)(const std::byte* in, std::byte* out, int64_t n);
  /// out = a + 3 b over floats.
  void (*triad)(const std::byte* a, const std::byte* b, std::byte* out, int64_t n);
};
struct StreamVariant : StreamKernels {
  std::string_view name;
  Isa isa;
  Support (*supports)();
};
inline constexpr int64_t kStreamUnit = 4096;

std::span<const StreamVariant> stream_variants();

}  // namespace ridge
