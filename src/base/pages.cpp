#include "base/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace ridge {
namespace {

/// `first` is where a page begins. A hint that the system refuses changes nothing.
void advise(uintptr_t first, uintptr_t last, int advice) {
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, advice);
}
uintptr_t page_size() { return uintptr_t(sysconf(_SC_PAGESIZE)); }

}  // namespace

void fetch_pages(std::span<const std::byte> bytes) {
  const auto first = reinterpret_cast<uintptr_t>(bytes.data());
  advise(first / page_size() * page_size(), first + bytes.size(), MADV_WILLNEED);
}

void want_huge_pages([[maybe_unused]] std::span<std::byte> bytes) {
#ifdef MADV_HUGEPAGE  // Linux
  constexpr size_t kHugePage = 2 << 20;
  const auto first = reinterpret_cast<uintptr_t>(bytes.data());
  if (bytes.size() >= 2 * kHugePage) advise(first, first + bytes.size(), MADV_HUGEPAGE);
#endif
}

void release_pages(std::span<const std::byte> mapped) {
  const auto first = reinterpret_cast<uintptr_t>(mapped.data()), last = first + mapped.size(), page = page_size();
  advise((first + page - 1) / page * page, last / page * page, MADV_DONTNEED);
}

}  // namespace ridge
