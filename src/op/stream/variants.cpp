// The stream table, worst to best, and the portable kernels.
#include <cstring>

#include "op/stream/kernels.h"

namespace ridge {
namespace {

Support always() { return {}; }

}  // namespace

uint64_t stream_read_ref(const std::byte* in, int64_t n) {
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

void stream_write_ref(std::byte* out, int64_t n, uint8_t value) { std::memset(out, value, size_t(n)); }
void stream_copy_ref(const std::byte* in, std::byte* out, int64_t n) { std::memcpy(out, in, size_t(n)); }

void stream_triad_ref(const std::byte* a, const std::byte* b, std::byte* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 4) {
    float x, y;
    std::memcpy(&x, a + i, 4);
    std::memcpy(&y, b + i, 4);
    const float sum = x + 3.0f * y;
    std::memcpy(out + i, &sum, 4);
  }
}

std::span<const StreamVariant> stream_variants() {
  static constexpr StreamVariant kVariants[] = {
      {"ref", Isa::scalar, always, stream_read_ref, stream_write_ref, nullptr, stream_copy_ref, nullptr,
       stream_triad_ref},
      {"stream-avx2", Isa::avx2, always, stream_read_avx2, stream_write_avx2, stream_write_nt_avx2, stream_copy_avx2,
       stream_copy_nt_avx2, stream_triad_avx2},
      {"stream-avx512", Isa::avx512, always, stream_read_avx512, stream_write_avx512, stream_write_nt_avx512,
       stream_copy_avx512, stream_copy_nt_avx512, stream_triad_avx512},
  };
  return kVariants;
}

}  // namespace ridge
