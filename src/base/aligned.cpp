#include "base/aligned.h"

#include <sys/mman.h>

#include <atomic>
#include <utility>

#include "base/pages.h"
#include "base/result.h"

namespace ridge {
namespace {

std::atomic<int64_t> held{0};

}  // namespace

int64_t AlignedBuffer::all_bytes() { return held.load(std::memory_order_relaxed); }

void AlignedBuffer::release() {
  if (!data_) return;
  munmap(data_, size_t(bytes_));
  held.fetch_sub(bytes_, std::memory_order_relaxed);
}

AlignedBuffer::AlignedBuffer(int64_t bytes) : bytes_(bytes) {
  RIDGE_CHECK(bytes >= 0, "{} bytes", bytes);
  if (bytes == 0) return;
  // Anonymous mappings are page-aligned, zeroed, and committed only when touched.
  void* memory = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw_error(
        ErrorKind::no_memory,
        "cannot allocate {:.1f} MiB: the system has no more memory for this process (use a smaller context or model)",
        double(bytes) / 1048576);
  data_ = static_cast<std::byte*>(memory);
  want_huge_pages({data_, size_t(bytes)});
  held.fetch_add(bytes, std::memory_order_relaxed);
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

AlignedBuffer::~AlignedBuffer() { release(); }

}  // namespace ridge
