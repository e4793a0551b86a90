// Streams with 64-byte loads and stores.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace ridge {
namespace {

struct Vector {
  using V = __m512i;
  static V load(const std::byte* p) { return _mm512_load_si512(reinterpret_cast<const V*>(p)); }
  static void store(std::byte* p, V x) { _mm512_store_si512(reinterpret_cast<V*>(p), x); }
  static void store_nt(std::byte* p, V x) { _mm512_stream_si512(reinterpret_cast<V*>(p), x); }
  static void fence() { _mm_sfence(); }
  static V zero() { return _mm512_setzero_si512(); }
  static V bytes_of(uint8_t value) { return _mm512_set1_epi8(char(value)); }
  static V add(V a, V b) { return _mm512_add_epi64(a, b); }
  static V triad(V a, V b) {
    const auto x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_set1_ps(3.0f), y, x));
  }
};

}  // namespace
}  // namespace ridge

// The Vector above must come first.
#include "op/stream/stream_simd.h"

namespace ridge {

const StreamKernels kStreamAvx512{stream_read, stream_write,   stream_write_nt,
                                  stream_copy, stream_copy_nt, stream_triad};

}  // namespace ridge
