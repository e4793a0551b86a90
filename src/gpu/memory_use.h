// Account of a device's allocated memory by its use, and of the memory that the driver takes beyond that.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace ridge::gpu {

enum class MemoryOf : uint8_t { other, weights, cache, activations, scratch, logits, sampling };
inline constexpr size_t kMemoryUses = 7;

/// Sizes of allocations, and what the driver makes of them: large ones are whole granules of 2 MiB, small ones share
/// granules in steps of 512 bytes. A model of cudaMalloc(), not a promise of CUDA's: `ridge plan --check` compares it.
struct Allocations {
  static constexpr int64_t kGranule = int64_t(2) << 20, kLarge = int64_t(1) << 20, kStep = 512;

  void add(int64_t n) {
    if (n <= 0) return;
    bytes += n;
    if (n >= kLarge) granules += (n + kGranule - 1) / kGranule;
    else small += (n + kStep - 1) / kStep * kStep;
  }
  void take_back(int64_t n) {
    Allocations one;
    one.add(n);
    bytes -= one.bytes;
    granules -= one.granules;
    small -= one.small;
  }
  void add(const Allocations& other) {
    bytes += other.bytes;
    granules += other.granules;
    small += other.small;
  }
  /// Bytes that the driver takes for all of these allocations.
  int64_t driver_bytes() const { return (granules + (small + kGranule - 1) / kGranule) * kGranule; }

  int64_t bytes = 0;     ///< as asked for
  int64_t granules = 0;  ///< of large ones
  int64_t small = 0;     ///< of small ones, in steps
};

/// A buffer that only grows in thought: BufferOf's interface, for plans that follow what steps make grow.
struct PlannedBuffer {
  template <class T = float>
  T* ensure(int64_t n) {
    size = std::max(size, n * int64_t(sizeof(T)));
    return nullptr;
  }
  int64_t bytes() const { return size; }

  int64_t size = 0;
};

// Defined in builds with RIDGE_CUDA only.

/// Counts allocations of this thread as `what` until the scope ends.
class MemoryLabel {
 public:
  explicit MemoryLabel(MemoryOf what);
  ~MemoryLabel();
  MemoryLabel(const MemoryLabel&) = delete;
  MemoryLabel& operator=(const MemoryLabel&) = delete;

 private:
  MemoryOf before_;
};
/// Live allocations of the process, on all devices together.
std::array<Allocations, kMemoryUses> memory_use();
inline Allocations sum_of(const std::array<Allocations, kMemoryUses>& uses) {
  Allocations all;
  for (const Allocations& of : uses) all.add(of);
  return all;
}

/// The driver's numbers of the device that this thread works on; other processes count in both.
struct DriverMemory {
  int64_t free = 0, total = 0;
  int64_t used() const { return total - free; }
};
/// Waits for the device first.
DriverMemory driver_memory();

}  // namespace ridge::gpu
