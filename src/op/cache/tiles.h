// Where the rows of a KV cache are: one view of one side (K or V) of one layer, for every format and device.
//
// A pool (engine/pool.h) holds many sequences. Coded rows are in pages of kPagePositions positions; a sequence has a
// list of page numbers, in order of position. What else a sequence needs is in its slot: the rows of its sinks, a ring
// of its newest rows in an exact format, the centre and the scales of its kv heads.
//
//   pages   [n_pages, n_kv_heads, kPageTiles] tiles        tile t of a sequence: page t / kPageTiles of its list
//   ring    [n_slots, n_kv_heads, ring_tiles] tiles        tile t in place t % ring_tiles
//   sinks   [n_slots, n_kv_heads] tiles of f16             row p is position p
//
// A tile is kTilePositions rows, in the order that its kind says (tile_order.h).
#pragma once

#include "format/kv_format.h"
#include "op/cache/centre.h"
#include "op/cache/retention.h"
#include "op/cache/rotate.h"
#include "op/cache/tile_order.h"

namespace ridge {

/// Tiles of a page: what a copy of one kv head's rows takes in one piece.
inline constexpr int kPageTiles = 4;
inline constexpr int kPagePositions = kPageTiles * kTilePositions;
/// Rows that a ring holds beyond a window and the tile that fills up: a sequence can go back by so many tokens, or
/// bring so many to a step, and still has every row exact that its queries see exact.
inline constexpr int kSpareRows = 32;
/// Largest head_dim that a device serves, latent rows apart.
inline constexpr int kMostRowsHeadDim = 512;

/// Sums over the values coded into a page, of all its positions and KV heads.
struct PageCounts {
  float norm2 = 0;   ///< sum of the squares of the values
  float error2 = 0;  ///< sum of the squares of what coding took from them
};

/// New tokens of one sequence in a step: rows first_row, first_row + 1, ... of the step's matrices stand at positions
/// n_past, n_past + 1, ...
struct KvSpan {
  int first_row = 0;
  int n_rows = 0;
  int n_past = 0;
  int slot = 0;
  const int32_t* pages = nullptr;  ///< of the sequence, enough for what the step codes; host memory
  bool calibrates = false;         ///< its only row completes calibration

  int n_keys() const { return n_past + n_rows; }
};

struct KvTiles {
  int format = 0;                         ///< of coded rows: number in kv_formats()
  int recent = 0;                         ///< of the ring's rows
  TileKind kind = TileKind::rows;         ///< of coded tiles
  TileKind recent_kind = TileKind::rows;  ///< of the ring's tiles; the sinks' are f16 or rows, as the ring's
  KvSide side = KvSide::v;
  int n_kv_heads = 0;
  int head_dim = 0;
  KvRetention retention;
  int n_sinks = 0;
  int attention_window = 0;  ///< > 0: a query sees the newest so many positions only, its own among them
  int ring_tiles = 0;        ///< 0: no row is kept exact but the sinks
  int64_t row_bytes = 0;     ///< of a coded row
  int64_t recent_row_bytes = 0;
  int64_t tile_bytes = 0;  ///< of a coded tile
  int64_t ring_tile_bytes = 0;
  int64_t sink_bytes = 0;  ///< of the sinks of a kv head
  std::byte* pages = nullptr;
  std::byte* ring = nullptr;
  std::byte* sinks = nullptr;
  float* centre = nullptr;                  ///< [n_slots, n_kv_heads, head_dim], zero until calibrated; null: never
  CentreTurn turn;                          ///< of the centre, where the side has one; its table on the same device
  float* head_scale = nullptr;              ///< [n_slots, n_kv_heads] where the format has head_scale
  const float* metric = nullptr;            ///< [n_kv_heads, head_dim, head_dim] in cache space, for weighted rounding
  RotationView rotation;                    ///< its table on the same device
  KvScale scale = KvScale::none;            ///< rule of the format's encoder
  RoundRow round = nullptr;                 ///< on the host: kernel of weighted rounding
  PageCounts* counts = nullptr;             ///< [n_pages]
  unsigned long long* saturated = nullptr;  ///< values clamped while coding

  /// The first position that a query sees when the cache holds n positions up to its own.
  RIDGE_HD int first_seen(int n) const {
    return attention_window > 0 && n > attention_window ? n - attention_window : 0;
  }
  RIDGE_HD int64_t page_bytes() const { return int64_t(n_kv_heads) * kPageTiles * tile_bytes; }
  /// Coded tile t of a kv head; `page` is number t / kPageTiles of the sequence's list.
  RIDGE_HD std::byte* coded_tile(int page, int head, int t) const {
    return pages + ((int64_t(page) * n_kv_heads + head) * kPageTiles + t % kPageTiles) * tile_bytes;
  }
  RIDGE_HD std::byte* ring_tile(int slot, int head, int t) const {
    return ring + ((int64_t(slot) * n_kv_heads + head) * ring_tiles + t % ring_tiles) * ring_tile_bytes;
  }
  RIDGE_HD std::byte* sink_tile(int slot, int head) const {
    return sinks + (int64_t(slot) * n_kv_heads + head) * sink_bytes;
  }

  // Rows of tiles of kind `rows`.
  RIDGE_HD std::byte* coded_row(const int32_t* page_list, int head, int position) const {
    return coded_tile(page_list[position / kPagePositions], head, position / kTilePositions) +
           position % kTilePositions * row_bytes;
  }
  RIDGE_HD std::byte* ring_row(int slot, int head, int position) const {
    return ring_tile(slot, head, position / kTilePositions) + position % kTilePositions * recent_row_bytes;
  }
  RIDGE_HD std::byte* sink_row(int slot, int head, int position) const {
    return sink_tile(slot, head) + int64_t(position) * 2 * head_dim;
  }

  RIDGE_HD const float* centre_of(int slot, int head) const {
    return centre + (int64_t(slot) * n_kv_heads + head) * head_dim;
  }
  /// row [head_dim] += sign times the centre of tile t, in the space of the model.
  RIDGE_HD void move_row(int slot, int head, int t, float sign, float* row) const {
    if (centre) turn.move(turn.tile(t), centre_of(slot, head), head_dim, sign, row);
  }
  /// row [head_dim] += the centre, in channels where it is the same in all tiles.
  RIDGE_HD void add_still_centre(int slot, int head, float* row) const {
    if (!centre) return;
    for (int d = 0; d < head_dim; ++d)
      if (!turn.turns(d)) row[d] += centre_of(slot, head)[d];
  }
  RIDGE_HD KvCoding coding(int slot, int head) const {
    return {.scale = scale,
            .fixed = head_scale ? head_scale[int64_t(slot) * n_kv_heads + head] : 0.0f,
            .metric = metric ? metric + int64_t(head) * head_dim * head_dim : nullptr,
            .round = round};
  }
};

}  // namespace ridge
