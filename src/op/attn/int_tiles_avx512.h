// Attention on the integers of a coded cache: tiles of 64 keys meet queries and weights that were rounded to integers,
// four products an instruction lane.
//
// Scores. q of a head is hi or 128 hi + lo in steps of its largest value (7 or 14 bits and a sign), K's codes become
// unsigned by an offset of 128 that the sums start without. A tile's codes are turned so that a lane is a key: no sum
// goes across lanes.
//
// Values. The weight of a key is its exp(score - top) times the scale of its row or block, in steps of the largest one
// of the tile and head: 8 bits for formats whose own error is far above that, else 16. With 8 bits the rounding error
// of a key goes to the next key of its lane, so that the weights' sum stays right within a step however many keys
// a split has.
//
// Bound by instructions for two and more heads a kv head: per 64 values and head one dot product a plane.
#pragma once

#include "op/attn/int_codes_avx512.h"
#include "op/simd/unrolled.h"

namespace ridge {
namespace {

constexpr int kIntMaxDim = 256;  // sums of 128 hi + lo over a row stay inside 32 bits
constexpr int kIntMaxBlocks = kIntMaxDim / 32;

/// A query of one head in integers.
struct IntQuery {
  alignas(64) int8_t plane[2][kIntMaxDim];  // hi, lo; coarse formats use hi alone, in larger steps
  int32_t start[kIntMaxBlocks][2];          // sums without the codes' offset: -128 sum of the block
  float factor;                             // of a step, times the scale of scores
};

/// Scratch of a thread for a tile, and for one head's rounded weights.
struct IntScratch {
  alignas(64) uint8_t codes[kKeyTile * kIntMaxDim];
  alignas(64) float scales[kIntMaxBlocks][kKeyTile];
  alignas(64) uint8_t weights[kIntMaxBlocks][2][kKeyTile];
  float step;  // of the weights
};

/// State of one head that a thread keeps between tiles of values.
struct IntSums {
  alignas(64) float out[kIntMaxDim];           // in the order of the codes (turn_values)
  alignas(64) float carry[kIntMaxBlocks][16];  // what rounding took, by block and lane
};

/// sum += 4 products a lane of unsigned times signed bytes. As the intrinsic, around which GCC 12 copies every sum
/// twice.
inline __m512i dot4(__m512i sum, __m512i bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "vm"(signed_bytes));
  return sum;
}

/// The largest bits of 16 floats >= 0 as a float: NaN if one is NaN.
inline float top_bits(__m512i bits) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(int(_mm512_reduce_max_epu32(bits)))));
}

template <class F, int kDim>
void round_query(const float* q, float scale, IntQuery& to) {
  constexpr float kSteps = F::kFine ? 127 * 128 : 127;
  __m512i top = _mm512_setzero_si512();
  for (int d = 0; d < kDim; d += 16)
    top = _mm512_max_epu32(top, _mm512_castps_si512(_mm512_abs_ps(_mm512_loadu_ps(q + d))));
  const float largest_q = top_bits(top), inverse = largest_q > 1e-30f ? kSteps / largest_q : 0.0f;
  to.factor = largest_q / kSteps * scale;
  constexpr int kBlock = F::kScaleBlock ? F::kScaleBlock : kDim;
  for (int first = 0; first < kDim; first += kBlock) {
    __m512i sums[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int d = first; d < first + kBlock; d += 16) {
      // A value that is no number becomes 0 here, and NaN by the factor.
      const __m512 wanted = _mm512_mul_ps(_mm512_loadu_ps(q + d), _mm512_set1_ps(inverse));
      const __m512i steps = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(wanted, wanted, _CMP_ORD_Q), wanted);
      const __m512i hi = F::kFine ? _mm512_srai_epi32(_mm512_add_epi32(steps, _mm512_set1_epi32(64)), 7) : steps;
      const __m512i lo = _mm512_sub_epi32(steps, _mm512_slli_epi32(hi, 7));
      _mm_store_si128(reinterpret_cast<__m128i*>(to.plane[0] + d), _mm512_cvtepi32_epi8(hi));
      _mm_store_si128(reinterpret_cast<__m128i*>(to.plane[1] + d), _mm512_cvtepi32_epi8(lo));
      sums[0] = _mm512_add_epi32(sums[0], hi), sums[1] = _mm512_add_epi32(sums[1], lo);
    }
    for (int p = 0; p < 2; ++p) to.start[first / kBlock][p] = -128 * _mm512_reduce_add_epi32(sums[p]);
  }
}

/// Scales of `count` rows, block by block, or their magnitudes; what lies behind them in the tile is left alone.
template <class F, int kDim, bool kMagnitude>
inline void load_scales(const TileRows64& rows, float fixed, int count, IntScratch& s) {
  constexpr int kBlocks = F::kScaleBlock ? kDim / F::kScaleBlock : 1;
  if constexpr (F::row_is_fixed) {
    for (float& scale : s.scales[0]) scale = F::kUnit * fixed;
  } else {
    // All the small stores first: a wide load waits for the ones it covers.
    alignas(64) uint16_t f16_scales[kIntMaxBlocks][kKeyTile];
    for (int i = 0; i < count; ++i)
      for (int b = 0; b < kBlocks; ++b) __builtin_memcpy(&f16_scales[b][i], F::scale_at(rows.row(i), kDim, b), 2);
    for (int b = 0; b < kBlocks; ++b)
      for (int i = 0; i < count; i += 16) {
        __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(f16_scales[b] + i));
        if (kMagnitude && F::kScaleHasSign) bits = _mm256_and_si256(bits, _mm256_set1_epi16(0x7FFF));
        _mm512_store_ps(s.scales[b] + i, _mm512_mul_ps(_mm512_cvtph_ps(bits), _mm512_set1_ps(F::kUnit)));
      }
  }
}

/// 16 rows of 16 words become 16 words of 16 rows.
inline void transpose_words(__m512i v[16]) {
  __m512 words[16];
  unrolled<16>([&](auto i) { words[i] = _mm512_castsi512_ps(v[i]); });
  Simd::transpose(words);
  unrolled<16>([&](auto i) { v[i] = _mm512_castps_si512(words[i]); });
}

/// Codes of `count` rows for scores: word w (4 values) of keys 16 v .. 16 v + 15 at ((w * 4) + v) * 64, offset by 128.
/// Keys behind the last one repeat it. Packed codes are turned before they are spread over bytes.
template <class F, int kDim>
inline void turn_keys(const TileRows64& rows, int count, Ahead& ahead, IntScratch& s) {
  constexpr bool kPacked = requires { F::kPackedBits; };
  constexpr int kStep = kPacked ? std::min(kDim, 128) : 64;  // values whose codes fill at most 16 words
  for (int v = 0; v < kKeyTile / 16 && 16 * v < count; ++v)
    for (int d = 0; d < kDim; d += kStep) {
      __m512i words[16];
      unrolled<16>([&](auto i) {
        const std::byte* row = rows.row(std::min(16 * v + i, count - 1));
        if constexpr (kPacked) words[i] = _mm512_loadu_si512(row + F::kPackedBits * d / 8);
        else words[i] = F::keys(row, d);
      });
      transpose_words(words);
      unrolled<kStep / 4>([&](auto w) {
        __m512i keys;
        if constexpr (kPacked) keys = F::template four_keys<w>(words);
        else keys = words[w];
        _mm512_store_si512(s.codes + ((d / 4 + w) * 4 + v) * 64, keys);
      });
      ahead.ask(16 * v * kDim + 16 * d, 4 * kKeyTile * kDim);
    }
}

/// Scores of a turned tile for kHeads heads; writes whole tiles.
template <class F, int kDim, int kHeads>
inline void int_scores(const IntQuery* q, const IntScratch& s, int count, float* out, int64_t stride) {
  constexpr int kPlanes = F::kFine ? 2 : 1, kKeys = F::kFine || kHeads > 4 ? 2 : 4;  // vectors of keys at a time
  constexpr int kBlock = F::kScaleBlock ? F::kScaleBlock : kDim;
  for (int first = 0; first < count; first += 16 * kKeys) {
    const uint8_t* codes = s.codes + first / 16 * 64;
    for (int b = 0; b * kBlock < kDim; ++b) {
      constexpr int kSums = kPlanes * kKeys;  // a head
      __m512i sum[kHeads * kSums];            // of (head, plane, vector of keys)
      unrolled<kHeads * kSums>([&](auto i) { sum[i] = _mm512_set1_epi32(q[i / kSums].start[b][i % kSums / kKeys]); });
      for (int d = b * kBlock; d < (b + 1) * kBlock; d += 4) {
        __m512i keys[kKeys];
        unrolled<kKeys>([&](auto v) { keys[v] = _mm512_load_si512(codes + d * 64 + v * 64); });
        unrolled<kPlanes * kHeads>([&](auto i) {
          int32_t four;
          __builtin_memcpy(&four, q[i / kPlanes].plane[i % kPlanes] + d, 4);
          const __m512i x = _mm512_set1_epi32(four);
          unrolled<kKeys>([&](auto v) { sum[i * kKeys + v] = dot4(sum[i * kKeys + v], keys[v], x); });
        });
      }
      unrolled<kHeads * kKeys>([&](auto i) {
        constexpr int kHead = i / kKeys, kVector = i % kKeys;
        __m512i whole = sum[kSums * kHead + kVector];
        if constexpr (kPlanes == 2)
          whole = _mm512_add_epi32(_mm512_slli_epi32(whole, 7), sum[kSums * kHead + kKeys + kVector]);
        float* at = out + kHead * stride + first + 16 * kVector;
        const __m512 scale =
            _mm512_mul_ps(_mm512_load_ps(s.scales[b] + first + 16 * kVector), _mm512_set1_ps(q[kHead].factor));
        const __m512 before = b == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(at);
        _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, before));
      });
    }
  }
}

/// Codes of `count` rows for values: four keys of a value in a word. Of each 64 values (d .. d + 63) of keys 4 g .. 4 g
/// + 3, word 4 l + i of vector k at (g * kDim / 16 + d / 16 + k) * 64 is value d + 16 l + 4 k + i.
template <class F, int kDim>
inline void turn_values(const TileRows64& rows, int count, Ahead& ahead, IntScratch& s) {
  for (int g = 0; 4 * g < count; ++g) {
    const std::byte* row[4];
    for (int i = 0; i < 4; ++i) row[i] = rows.row(std::min(4 * g + i, count - 1));
    for (int d = 0; d < kDim; d += 64) {
      const __m512i a = F::values(row[0], d), b = F::values(row[1], d), c = F::values(row[2], d),
                    e = F::values(row[3], d);
      const __m512i ab = _mm512_unpacklo_epi8(a, b), AB = _mm512_unpackhi_epi8(a, b);
      const __m512i ce = _mm512_unpacklo_epi8(c, e), CE = _mm512_unpackhi_epi8(c, e);
      uint8_t* to = s.codes + (int64_t(g) * kDim + d) * 4;
      _mm512_store_si512(to, _mm512_unpacklo_epi16(ab, ce));
      _mm512_store_si512(to + 64, _mm512_unpackhi_epi16(ab, ce));
      _mm512_store_si512(to + 128, _mm512_unpacklo_epi16(AB, CE));
      _mm512_store_si512(to + 192, _mm512_unpackhi_epi16(AB, CE));
    }
    ahead.ask(4 * g, 4 * kKeyTile);
  }
}

/// Bytes 0 and 1 of the words of four vectors.
inline void low_bytes(const __m512i v[4], __m512i& first, __m512i& second) {
  static constexpr Bytes64 kFrom = each_byte([](int i) { return i % 32 * 4 + i / 32; });
  const __m512i a = _mm512_permutex2var_epi8(v[0], kFrom.load(), v[1]);
  const __m512i b = _mm512_permutex2var_epi8(v[2], kFrom.load(), v[3]);
  first = _mm512_shuffle_i64x2(a, b, 0x44), second = _mm512_shuffle_i64x2(a, b, 0xEE);
}

/// Rounds p * scale of the live keys to bytes; those of the other keys are zero.
template <class F, int kDim>
inline void round_weights(const float* p, Live live_keys, IntScratch& s, IntSums& to) {
  constexpr int kVectors = kKeyTile / 16, kBlocks = F::kScaleBlock ? kDim / F::kScaleBlock : 1;
  const auto below = [](int end) { return (1u << std::clamp(end, 0, 16)) - 1; };
  __mmask16 live[kVectors];
  unrolled<kVectors>(
      [&](auto v) { live[v] = __mmask16(below(live_keys.end - 16 * v) & ~below(live_keys.begin - 16 * v)); });
  __m512 weight[kBlocks * kVectors];
  __m512i top = _mm512_setzero_si512();
  unrolled<kVectors>([&](auto v) { weight[v] = _mm512_maskz_loadu_ps(live[v], p + 16 * v); });
  for (int b = kBlocks - 1; b >= 0; --b)
    unrolled<kVectors>([&](auto v) {
      const __m512 w = _mm512_maskz_mul_ps(live[v], weight[v], _mm512_load_ps(s.scales[b] + 16 * v));
      weight[b * kVectors + v] = w;
      top = _mm512_max_epu32(top, _mm512_castps_si512(w));
    });
  constexpr float kSteps = F::kFine ? 255 * 256 : 255;
  const float largest_weight = top_bits(top);
  s.step = largest_weight / kSteps;
  const __m512 inverse = _mm512_set1_ps(largest_weight < 1e-30f ? 0.0f : kSteps / largest_weight);
  for (int b = 0; b < kBlocks; ++b) {
    __m512 left = _mm512_setzero_ps();
    if constexpr (!F::kFine) left = _mm512_mul_ps(_mm512_load_ps(to.carry[b]), inverse);
    __m512i steps[kVectors], low, high;
    unrolled<kVectors>([&](auto v) {
      if constexpr (F::kFine) {
        steps[v] = _mm512_cvtps_epi32(_mm512_mul_ps(weight[b * kVectors + v], inverse));
      } else {
        const __m512 wanted = _mm512_fmadd_ps(weight[b * kVectors + v], inverse, left);
        __m512 whole = _mm512_roundscale_ps(wanted, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        whole = _mm512_maskz_min_ps(live[v], _mm512_max_ps(whole, _mm512_setzero_ps()), _mm512_set1_ps(255));
        left = _mm512_sub_ps(wanted, whole);
        steps[v] = _mm512_cvtps_epi32(whole);
      }
    });
    low_bytes(steps, low, high);
    _mm512_store_si512(s.weights[b][0], F::kFine ? high : low);
    if (F::kFine) _mm512_store_si512(s.weights[b][1], low);
    if constexpr (!F::kFine) _mm512_store_ps(to.carry[b], _mm512_mul_ps(left, _mm512_set1_ps(s.step)));
  }
}

/// sums.out += step * sum over keys of weights * codes, kVectors vectors of values from vector `first` on.
template <class F, int kDim, int kVectors>
inline void int_values(const IntScratch& s, int count, int first, IntSums& to) {
  constexpr int kPlanes = F::kFine ? 2 : 1;
  __m512i sum[kPlanes * kVectors];
  unrolled<kPlanes * kVectors>([&](auto i) { sum[i] = _mm512_setzero_si512(); });
  const uint8_t* codes = s.codes + first * 64;
  // Scales by block: the first 8 words of a vector belong to one block of 32 values, the others to the next.
  __m512i pick = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16);
  for (int g = 0; 4 * g < count; ++g, codes += kDim * 4) {
    unrolled<kVectors / 4 * kPlanes>([&](auto i) {
      constexpr int kChunk = i / kPlanes, kPlane = i % kPlanes;
      __m512i weights;
      if constexpr (F::kScaleBlock != 0) {
        const int b = first / 2 + 2 * kChunk;
        weights = _mm512_permutex2var_epi32(_mm512_load_si512(s.weights[b][kPlane]), pick,
                                            _mm512_load_si512(s.weights[b + 1][kPlane]));
      } else {
        int32_t four;
        __builtin_memcpy(&four, s.weights[0][kPlane] + 4 * g, 4);
        weights = _mm512_set1_epi32(four);
      }
      unrolled<4>([&](auto k) {
        constexpr int kAt = kPlane * kVectors + 4 * kChunk + k;
        sum[kAt] = dot4(sum[kAt], weights, _mm512_load_si512(codes + (4 * kChunk + k) * 64));
      });
    });
    if constexpr (F::kScaleBlock != 0) pick = _mm512_add_epi32(pick, _mm512_set1_epi32(1));
  }
  unrolled<kVectors>([&](auto v) {
    __m512i whole = sum[v];
    if constexpr (kPlanes == 2) whole = _mm512_add_epi32(_mm512_slli_epi32(whole, 8), sum[kVectors + v]);
    float* at = to.out + (first + v) * 16;
    _mm512_store_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(s.step), _mm512_load_ps(at)));
  });
}

/// The functions of one format and head size. `pairs` are consecutive (query, head)s.
struct IntKernels {
  std::string_view format;
  int head_dim;
  void (*round_query)(const float* q, float scale, IntQuery& to);
  void (*turn_keys)(const TileRows64& rows, float fixed, int count, Ahead& ahead, IntScratch& s);
  void (*scores)(const IntQuery* q, int pairs, int count, const IntScratch& s, Ahead& ahead, float* out,
                 int64_t stride);
  void (*turn_values)(const TileRows64& rows, float fixed, int count, Ahead& ahead, IntScratch& s);
  void (*add_values)(const float* p, Live live, int count, IntScratch& s, IntSums& sums);
};

template <class F, int kDim>
void turn_tile_keys(const TileRows64& rows, float fixed, int count, Ahead& ahead, IntScratch& s) {
  load_scales<F, kDim, false>(rows, fixed, count, s);
  turn_keys<F, kDim>(rows, count, ahead, s);
}

template <class F, int kDim>
void tile_int_scores(const IntQuery* q, int pairs, int count, const IntScratch& s, Ahead& ahead, float* out,
                     int64_t stride) {
  for (int j = 0; j < pairs;) {
    const int left = pairs - j, take = !F::kFine && (left == 5 || left == 6) ? left : rows_at_once(left);
    float* at = out + j * stride;
    switch (take) {
      case 6: int_scores<F, kDim, F::kFine ? 4 : 6>(q + j, s, count, at, stride); break;
      case 5: int_scores<F, kDim, F::kFine ? 4 : 5>(q + j, s, count, at, stride); break;
      case 4: int_scores<F, kDim, 4>(q + j, s, count, at, stride); break;
      case 3: int_scores<F, kDim, 3>(q + j, s, count, at, stride); break;
      case 2: int_scores<F, kDim, 2>(q + j, s, count, at, stride); break;
      default: int_scores<F, kDim, 1>(q + j, s, count, at, stride);
    }
    j += take;
    ahead.ask(pairs + 3 * j, 4 * pairs);  // the first quarter when keys were turned
  }
}

template <class F, int kDim>
void turn_tile_values(const TileRows64& rows, float fixed, int count, Ahead& ahead, IntScratch& s) {
  load_scales<F, kDim, true>(rows, fixed, count, s);
  turn_values<F, kDim>(rows, count, ahead, s);
}

template <class F, int kDim>
void add_tile_values(const float* p, Live live, int count, IntScratch& s, IntSums& sums) {
  constexpr int kVectors = kDim == 64 ? 4 : 8;
  round_weights<F, kDim>(p, live, s, sums);
  for (int v = 0; v < kDim / 16; v += kVectors) int_values<F, kDim, kVectors>(s, count, v, sums);
}

template <class F, int kDim>
constexpr IntKernels int_kernels_of(std::string_view format) {
  return {format,
          kDim,
          round_query<F, kDim>,
          turn_tile_keys<F, kDim>,
          tile_int_scores<F, kDim>,
          turn_tile_values<F, kDim>,
          add_tile_values<F, kDim>};
}
template <int kDim>
inline constexpr IntKernels kIntKernels[] = {
    int_kernels_of<Rotor3Codes, kDim>(KvRotor3::kName), int_kernels_of<Rotor3sCodes, kDim>(KvRotor3s::kName),
    int_kernels_of<Rotor4Codes, kDim>(KvRotor4::kName), int_kernels_of<Q4Codes, kDim>(KvQ4_0::kName),
    int_kernels_of<Q8Codes, kDim>(KvQ8_0::kName),       int_kernels_of<P8Codes, kDim>(KvP8::kName),
    int_kernels_of<I8rCodes, kDim>(KvI8r::kName)};

inline const IntKernels* int_kernels(const KvFormat& format, int head_dim) {
  if (!int_rounding(format, head_dim)) return nullptr;
  const std::span<const IntKernels> table = head_dim == 64    ? std::span(kIntKernels<64>)
                                            : head_dim == 128 ? std::span(kIntKernels<128>)
                                                              : std::span(kIntKernels<256>);
  for (const IntKernels& kernels : table)
    if (kernels.format == format.name) return &kernels;
  return nullptr;
}

}  // namespace
}  // namespace ridge
