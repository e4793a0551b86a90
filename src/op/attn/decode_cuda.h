// Decode attention on the device: one query a sequence over a cache held in tiles (kv_tile.h), K and V in any of their
// formats.
//
//   out[s, h] = back(sum over positions p of softmax_p(<forward(q[s, h]), K[p]> * scale) V[p] + centre)
//
// Two kernels. The first cuts the tiles of every (sequence, kv head) into parts, by lengths read on the device: one
// captured launch serves every depth and any mix of lengths. A block takes one part; its warps take tiles in turn and
// leave one partial result. The second puts a head's parts together, in the order of positions: results do not depend
// on timing.
//
// Scores are integer products (int8 and 4-bit and 3-bit caches) of 15-bit queries, or half products of 22-bit queries;
// weights of V likewise, each tile under its own largest weight. Against exact arithmetic on what the tiles hold: a
// score is off by at most |K|_1 max|q| 2^-14, an output by 2^-13 of the largest |V| in sight, plus float rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/device.h"
#include "op/attn/kv_tile.h"
#include "op/attn/retention.h"
#include "op/kv_append/rotate.h"

namespace ridge {

/// One side (K or V) of one layer, for any number of sequences.
struct TileSide {
  TileKind kind = TileKind::f16;
  /// Coded tiles: tile t of (sequence, kv head) at seq * seq_stride + head * head_stride + t * (bytes of a tile); with
  /// a page table at page * seq_stride + head * head_stride + (t % kPageTiles) * (bytes of a tile).
  const std::byte* coded = nullptr;
  int64_t seq_stride = 0;
  int64_t head_stride = 0;
  /// Tiles of exact rows: [n_seq, n_kv_heads, ring_tiles], tile t in slot t % ring_tiles; none when ring_tiles is 0.
  TileKind recent = TileKind::f16;  ///< f16 or int8_row
  const std::byte* ring = nullptr;
  int ring_tiles = 0;
  /// f16 tiles [n_seq, n_kv_heads] whose first n_sinks rows are the first positions; none when n_sinks is 0.
  const std::byte* sinks = nullptr;
  int n_sinks = 0;
  KvRetention retention;
  RotationView rotation;          ///< of this side; its table in device memory
  const float* centre = nullptr;  ///< V: [n_seq, n_kv_heads, head_dim] added to the output before it is turned back
};

/// Tiles of a page of a paged cache.
inline constexpr int kPageTiles = 2;

struct TileAttn {
  int n_seq = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;  ///< 64, 128 or 256
  float scale = 0;
  /// [n_seq], at least 1; the query is the last of them. Read before the grid before has ended (TileAttnPlan::overlap),
  /// as are tiles that neither hold the newest position nor were coded in this step: whoever writes them must have
  /// ended before a launch without overlap.
  const int32_t* n_keys = nullptr;
  const int32_t* pages = nullptr;  ///< [n_seq, pages_per_seq] numbers of pages; null: sequences lie one after another
  int pages_per_seq = 0;
  const float* q = nullptr;  ///< [n_seq, n_heads, head_dim], not in cache space
  TileSide k, v;
  float* out = nullptr;  ///< [n_seq, n_heads, head_dim]
  /// tile_attn_scratch_bytes() of as many sequences or more, and of this number of blocks and head_dim.
  std::byte* scratch = nullptr;
};

/// How a launch is cut; the defaults are predicted to be the best, not measured.
struct TileAttnPlan {
  int blocks = 0;        ///< 0: one for each multiprocessor
  int least_tiles = 0;   ///< tiles of a part at least, rounded down to a power of two; 0: what keeps its warps busy
  int warps = 0;         ///< of a block, at most 12; 0 lets the kernel choose
  int stages = 0;        ///< steps of tiles in a warp's ring, 2 to 4; 0: 2
  bool overlap = false;  ///< programmatic dependent launch
};

/// Whether `per_processor` blocks of such a plan fit a multiprocessor of the current device.
bool tile_attn_fits(TileKind k, TileKind v, int head_dim, const TileAttnPlan& plan, int per_processor);

/// Null when there is a kernel for such rows (of any kinds), else why not.
const char* tile_attn_unsupported(int head_dim, int k_sinks, int v_sinks);
int64_t tile_attn_scratch_bytes(int n_seq, int n_heads, int n_kv_heads, int head_dim, int blocks);
void tile_attn(gpu::StreamHandle stream, const TileAttn& a, const TileAttnPlan& plan);
/// Multiprocessors of the current device.
int tile_attn_blocks();

}  // namespace ridge
