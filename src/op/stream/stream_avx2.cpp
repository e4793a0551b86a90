// Streams with 32-byte loads and stores.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace ridge {
namespace {

struct Vector {
  using V = __m256i;
  static V load(const std::byte* p) { return _mm256_load_si256(reinterpret_cast<const V*>(p)); }
  static void store(std::byte* p, V x) { _mm256_store_si256(reinterpret_cast<V*>(p), x); }
  static void store_nt(std::byte* p, V x) { _mm256_stream_si256(reinterpret_cast<V*>(p), x); }
  static void fence() { _mm_sfence(); }
  static V zero() { return _mm256_setzero_si256(); }
  static V bytes_of(uint8_t value) { return _mm256_set1_epi8(char(value)); }
  static V add(V a, V b) { return _mm256_add_epi64(a, b); }
  static V triad(V a, V b) {
    const auto x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
    return _mm256_castps_si256(_mm256_fmadd_ps(_mm256_set1_ps(3.0f), y, x));
  }
};

}  // namespace
}  // namespace ridge

// The Vector above must come first.
#include "op/stream/stream_simd.h"

namespace ridge {

const StreamKernels kStreamAvx2{stream_read, stream_write, stream_write_nt, stream_copy, stream_copy_nt, stream_triad};

}  // namespace ridge
