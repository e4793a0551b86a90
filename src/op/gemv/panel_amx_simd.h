// Tiles of AMX for products of panels with many tokens. Included after op/gemv/panel_simd.h for AVX-512.
//
// A tile of activations is 16 tokens x the columns of one scale, a tile of weights those columns x 16 rows in the order
// of a decoded chunk, and their product 16 x 16 exact integers. Floats are added in the order of all panel kernels, so
// the bits are theirs. `Registers` are the eight tile registers, real ones or those of a test.
#pragma once

#include "op/gemv/panel_simd.h"

namespace ridge {
namespace {

/// Shapes of the tile registers, as the processor reads them.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, unused[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

template <class Registers>
struct AmxTiles : DotTiles {
  static constexpr int64_t kFew = 0;
  static constexpr int kTokens = 16;  ///< rows of a tile
  static constexpr int kAtOnce = 4;   ///< scales whose integers wait in L1 for their sums

  /// Integers of one scale: [vector][plane][token][row].
  template <int kPlanes>
  using Dots = int32_t[kTileVectors][kPlanes][kTokens][kPanelRows];

  // Tile registers: products of (vector, plane), activations of a plane, weights of a vector.
  static constexpr int dot_tile(int v, int plane) { return 2 * v + plane; }
  static constexpr int token_tile(int plane) { return 4 + plane; }
  static constexpr int weight_tile(int v) { return 6 + v; }

  template <class Kind>
  static void add(const DecodedChunk& w, const ChunkTokens<Kind::kPlanes>& tokens) {
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
      shapes.rows[tile] = tile < weight_tile(0) ? kTokens : Kind::kScaled / 4;
      shapes.row_bytes[tile] = tile < token_tile(0) || tile >= weight_tile(0) ? 64 : Kind::kScaled;
    }
    Registers::shape(shapes);
    int64_t t = 0;
    for (; t + kTokens <= tokens.n; t += kTokens) add_tile<Kind>(w, tokens.behind(t));
    Registers::release();
    DotTiles::add<Kind>(w, tokens.behind(t));
  }

  template <class Kind>
  static void add_tile(const DecodedChunk& w, const ChunkTokens<Kind::kPlanes>& tokens) {
    alignas(64) Dots<Kind::kPlanes> dots[kAtOnce];
    const int64_t n_at = Kind::kParts * w.n_groups;
    for (int64_t first = 0; first < n_at; first += kAtOnce) {
      const int64_t n = std::min<int64_t>(kAtOnce, n_at - first);
      for (int64_t i = 0; i < n; ++i) multiply<Kind>(w, tokens, first + i, dots[i]);
      for (int t = 0; t < kTokens; ++t)
        for (int v = 0; v < kTileVectors; ++v) {
          float* const y = tokens.y + t * kTileRows + v * Simd::kLanes;
          Simd::F total = Simd::load(y);
          for (int64_t i = 0; i < n; ++i) {
            Simd::I dot[Kind::kPlanes];
            for (int plane = 0; plane < Kind::kPlanes; ++plane) dot[plane] = Simd::iload(dots[i][v][plane][t]);
            Simd::I& last = dot[Kind::kPlanes - 1];
            last = Simd::iadd(last, zero_dot<Kind>(w, tokens, first + i, t));
            total = add_scaled<Kind>(total, w, tokens, first + i, v, t, dot);
          }
          Simd::store(y, total);
        }
    }
  }

  /// The integers of the columns of scale `at`.
  template <class Kind>
  static void multiply(const DecodedChunk& w, const ChunkTokens<Kind::kPlanes>& tokens, int64_t at,
                       Dots<Kind::kPlanes>& dots) {
    unrolled<Kind::kPlanes>([&](auto plane) {
      Registers::template load<token_tile(plane)>(tokens.q(0) + plane * tokens.x.plane_q() + at * Kind::kScaled,
                                                  kPanelChunk);
    });
    unrolled<kTileVectors>([&](auto v) {
      Registers::template load<weight_tile(v)>(w.weights[at * (Kind::kScaled / 4)][v], sizeof w.weights[0]);
      unrolled<Kind::kPlanes>([&](auto plane) {
        constexpr int kDot = dot_tile(v, plane);
        Registers::template zero<kDot>();
        Registers::template dot<kDot, token_tile(plane), weight_tile(v)>();
        Registers::template store<kDot>(dots[v][plane], sizeof dots[v][plane][0]);
      });
    });
  }
};

}  // namespace
}  // namespace ridge
