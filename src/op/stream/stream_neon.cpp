// Streams with 32-byte loads and stores of pairs of registers.
#include <cstddef>
#include <cstdint>

#include "op/simd/neon.h"

namespace ridge {
namespace {

struct Vector {
  using V = Bytes;
  static V load(const std::byte* p) { return bytes32(p); }
  static void store(std::byte* p, V x) { store_bytes(p, x); }
  static void store_nt(std::byte* p, V x) {
    asm volatile("stnp %q1, %q2, [%0]" : : "r"(p), "w"(x.low), "w"(x.high) : "memory");
  }
  static void fence() { asm volatile("dmb ishst" : : : "memory"); }
  static V zero() { return bytes_of(0); }
  static V bytes_of(uint8_t value) { return {vdupq_n_u8(value), vdupq_n_u8(value)}; }
  static V add(V a, V b) {
    const auto sum = [](uint8x16_t x, uint8x16_t y) {
      return vreinterpretq_u8_u64(vaddq_u64(vreinterpretq_u64_u8(x), vreinterpretq_u64_u8(y)));
    };
    return {sum(a.low, b.low), sum(a.high, b.high)};
  }
  static V triad(V a, V b) {
    const auto sum = [](uint8x16_t x, uint8x16_t y) {
      return vreinterpretq_u8_f32(vfmaq_n_f32(vreinterpretq_f32_u8(x), vreinterpretq_f32_u8(y), 3));
    };
    return {sum(a.low, b.low), sum(a.high, b.high)};
  }
};

}  // namespace
}  // namespace ridge

// The Vector above must come first.
#include "op/stream/stream_simd.h"

namespace ridge {

const StreamKernels kStreamNeon{stream_read, stream_write, stream_write_nt, stream_copy, stream_copy_nt, stream_triad};

}  // namespace ridge
