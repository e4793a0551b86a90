// Panel kernels for many tokens with the matrix instructions of i8mm; a few tokens run those of NEON.
//
// An instruction multiplies 2 rows x 8 columns of weights with 8 columns of 2 tokens. A decoded chunk holds two rows of
// 8 columns side by side; sums are those of all panel kernels.
#include "op/simd/neon.h"
// The Simd struct above must come first.
#include "op/gemv/panel_simd.h"
#include "op/kernels.h"

namespace ridge {
namespace {

using Int4 = int32x4_t;

/// sum + 2 rows of weights times 2 tokens: [row][token]. Assembly, for the file's flags have no i8mm.
inline Int4 multiply_pairs(Int4 sum, int8x16_t weights, int8x16_t tokens) {
  asm(".arch_extension i8mm\n\tsmmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(weights), "w"(tokens));
  return sum;
}

/// y[t][row] += a decoded chunk times token 0 and token kSecond; where they are the same one, it is written once.
template <int kSecond, class Kind>
[[gnu::noinline]] void pair_tile(const DecodedChunk& w, const ChunkTokens<Kind::kPlanes>& tokens) {
  constexpr int kPairs = Simd::kLanes / 2;  // of rows in a vector
  const int8_t* q = tokens.q(0);
  const int64_t plane_q = tokens.x.plane_q();
  Simd::F total[1 + kSecond][kTileVectors];
  const auto each = [](const auto& body) {
    unrolled<1 + kSecond>([&](auto t) { unrolled<kTileVectors>([&](auto v) { body(t, v); }); });
  };
  each([&](auto t, auto v) { total[t][v] = Simd::load(tokens.y + t * kTileRows + v * Simd::kLanes); });
  const std::byte(*weights)[kTileVectors][kVectorBytes] = w.weights;
  for (int64_t at = 0; at < Kind::kParts * w.n_groups; ++at, q += Kind::kScaled, weights += Kind::kScaled / 4) {
    Int4 sums[Kind::kPlanes][kTileVectors][kPairs];
    for (auto& of_plane : sums)
      for (auto& of_vector : of_plane)
        for (Int4& sum : of_vector) sum = vdupq_n_s32(0);
    unrolled<Kind::kScaled / 8>([&](auto k) {
      int8x16_t both[Kind::kPlanes];
      unrolled<Kind::kPlanes>([&](auto plane) {
        const int8_t* const of_plane = q + plane * plane_q + 8 * k;
        both[plane] = vcombine_s8(vld1_s8(of_plane), vld1_s8(of_plane + kSecond * kPanelChunk));
      });
      unrolled<kTileVectors>([&](auto v) {
        unrolled<kPairs>([&](auto pair) {
          const int8x16_t rows =
              vld1q_s8(reinterpret_cast<const int8_t*>(weights[2 * k + pair / 2][v]) + pair % 2 * 16);
          unrolled<Kind::kPlanes>(
              [&](auto plane) { sums[plane][v][pair] = multiply_pairs(sums[plane][v][pair], rows, both[plane]); });
        });
      });
    });
    each([&](auto t, auto v) {
      Simd::I dot[Kind::kPlanes];
      for (int plane = 0; plane < Kind::kPlanes; ++plane) {
        const auto of_token = [&](Int4 a, Int4 b) {
          return vreinterpretq_u8_s32(t == 0 ? vuzp1q_s32(a, b) : vuzp2q_s32(a, b));
        };
        const Int4* const s = sums[plane][v];
        dot[plane] = {of_token(s[0], s[1]), of_token(s[2], s[3])};
      }
      Simd::I& last = dot[Kind::kPlanes - 1];
      last = Simd::iadd(last, zero_dot<Kind>(w, tokens, at, t));
      total[t][v] = add_scaled<Kind>(total[t][v], w, tokens, at, v, t, dot);
    });
  }
  each([&](auto t, auto v) { Simd::store(tokens.y + t * kTileRows + v * Simd::kLanes, total[t][v]); });
}

struct PairTiles {
  static constexpr int64_t kFew = 0, kLeast = DotTiles::kFew + 1;
  /// Two rows of 8 columns in 16 bytes: rows 0 to 3 of the vector, then 4 to 7.
  template <bool kLarge>
  static void put(Simd::I even, Simd::I odd, std::byte (*weights)[kTileVectors][kVectorBytes], int v) {
    const uint8x16_t offset = vdupq_n_u8(kLarge ? Simd::kDot4Zero : 0);
    const auto pairs = [&](uint8x16_t a, uint8x16_t b) {
      const uint32x4_t x = vreinterpretq_u32_u8(veorq_u8(a, offset)), y = vreinterpretq_u32_u8(veorq_u8(b, offset));
      return Simd::I{vreinterpretq_u8_u32(vzip1q_u32(x, y)), vreinterpretq_u8_u32(vzip2q_u32(x, y))};
    };
    Simd::istore(weights[0][v], pairs(even.low, odd.low));
    Simd::istore(weights[1][v], pairs(even.high, odd.high));
  }
  template <class Kind>
  static void add(const DecodedChunk& w, const ChunkTokens<Kind::kPlanes>& tokens) {
    int64_t t = 0;
    for (; t + 2 <= tokens.n; t += 2) pair_tile<1, Kind>(w, tokens.behind(t));
    if (t < tokens.n) pair_tile<0, Kind>(w, tokens.behind(t));
  }
};

}  // namespace

void panel_1plane_i8mm(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  x.rows < PairTiles::kLeast ? panel_1plane_neon(context, x, all) : run_panels<1, PairTiles>(context, x, all);
}
void panel_2planes_i8mm(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  x.rows < PairTiles::kLeast ? panel_2planes_neon(context, x, all) : run_panels<2, PairTiles>(context, x, all);
}

}  // namespace ridge
