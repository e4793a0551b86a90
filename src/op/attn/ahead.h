// Asking for memory while other memory is worked on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ridge {
namespace {

/// The cache lines of a range, asked for in parts: a core has some twenty requests in flight, and a core that asks for
/// more at once waits.
class Ahead {
 public:
  Ahead(const std::byte* from, int64_t bytes) : next_(from), from_(from), bytes_(bytes) {}
  /// Asks for the missing lines of the first done / of parts of the range.
  void ask(int done, int of) {
    for (const std::byte* end = from_ + bytes_ * done / of; next_ < end; next_ += 64) __builtin_prefetch(next_);
  }
  /// Asks for one more line of the range.
  void ask_next() {
    if (next_ >= from_ + bytes_) return;
    __builtin_prefetch(next_);
    next_ += 64;
  }

 private:
  const std::byte *next_, *from_;
  int64_t bytes_;
};

}  // namespace
}  // namespace ridge
