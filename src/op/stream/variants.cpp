// The stream table, worst to best, and the portable kernels.
#include <cstring>

#include "op/stream/kernels.h"

namespace ridge {
namespace {

Support always() { return {}; }

uint64_t read_ref(const std::byte* in, int64_t n) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i < n; i += 64)
    for (int lane = 0; lane < 8; ++lane) {
      uint64_t word;
      std::memcpy(&word, in + i + 8 * lane, 8);
      sums[lane] += word;
    }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

void write_ref(std::byte* out, int64_t n, uint8_t value) { std::memset(out, value, size_t(n)); }
void copy_ref(const std::byte* in, std::byte* out, int64_t n) { std::memcpy(out, in, size_t(n)); }

void triad_ref(const std::byte* a, const std::byte* b, std::byte* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 4) {
    float x, y;
    std::memcpy(&x, a + i, 4);
    std::memcpy(&y, b + i, 4);
    const float sum = x + 3.0f * y;
    std::memcpy(out + i, &sum, 4);
  }
}

}  // namespace

std::span<const StreamVariant> stream_variants() {
  static const StreamVariant kVariants[] = {
    {{read_ref, write_ref, nullptr, copy_ref, nullptr, triad_ref}, "ref", Isa::scalar, always},
#if defined(__x86_64__)
    {kStreamAvx2, "stream-avx2", Isa::avx2, always},
    {kStreamAvx512, "stream-avx512", Isa::avx512, always},
#elif defined(__aarch64__)
    {kStreamNeon, "stream-neon", Isa::neon, always},
#endif
  };
  return kVariants;
}

}  // namespace ridge
