// Attention of a step's new tokens over the caches of their sequences on a device: attn.h's definition, rows read from
// pages, rings and sinks as they are held (op/cache/tiles.h).
//
//   out[r, h] = back(sum over positions p <= position of r of softmax_p(<q[r, h], K[p] + centre of p> * scale) V[p])
//               + centre
//
// The centre of p is that of p's tile (op/cache/centre.h), in channels where it turns.
//
// over the newest positions only where the tiles have an attention window: tiles before it are not read. A sink logit
// is the score of one more key of a head, without a value.
//
// A query sees a row coded or exact by its own position. There are five kernels: decode (each query on its own over
// packed tiles), prefill (many queries of a sequence, tiles turned to f16 as they come), rows-f16 (tiles of rows,
// turned to f16), rows (the same of any format in floats) and latent (rows that are K and V in one). device_attention.h
// says which serves what.
#pragma once

#include <cstddef>
#include <vector>

#include "gpu/device.h"
#include "op/cache/step_rows.h"
#include "op/cache/tiles.h"

namespace ridge {

/// Pointers are device memory.
struct DeviceAttention {
  StepRows rows;                       ///< one query of every head each; their K and V are in the cache
  int n_heads = 0;                     ///< query heads; a multiple of the kv heads
  float scale = 0;                     ///< on the scores
  const float* sink_logits = nullptr;  ///< [n_heads]; null: none
  KvTiles k, v;
  const float* q = nullptr;          ///< [rows of the step, n_heads, head_dim], in K's cache space (device_append)
  const float* q_weights = nullptr;  ///< DeviceAppend's, for tile_attn() where the centre of K turns
  float* out = nullptr;              ///< as q, not in cache space; of padding nothing is written

  RIDGE_HD int group() const { return n_heads / k.n_kv_heads; }
};

/// How a launch of decode attention is cut; the defaults are predicted to be the best, not measured.
struct TileAttnPlan {
  int blocks = 0;        ///< 0: one for each multiprocessor
  int least_tiles = 0;   ///< tiles of a part at least, rounded down to a power of two; 0: what keeps its warps busy
  int warps = 0;         ///< of a block, at most 12; 0 lets the kernel choose
  int stages = 0;        ///< steps of tiles in a warp's ring, 2 to 4; 0: 2
  int long_rows = 0;     ///< coded tiles x query heads of a kv head from which on a cache counts as long; 0: 2048
  bool overlap = false;  ///< programmatic dependent launch
  bool alone = false;    ///< a query has the bits that it would have alone in a launch of as many rows
};

/// Decode attention over tiles in the order of tensor cores. Two kernels: the first cuts the tiles of every (query, kv
/// head) into parts, by positions read on the device, so that one recorded launch serves every depth and any mix of
/// lengths; the second puts a head's parts together in the order of positions: results do not depend on timing. Tokens
/// of one sequence share a pass over the cache while their heads of a kv head fit into the eight rows of a matmul, or,
/// over long caches of f16, into two matmuls' rows.
///
/// Scores are integer products (int8, 4-bit and 3-bit caches) of 15-bit queries, or half products of 22-bit queries;
/// weights of V likewise, each tile under its own largest weight. Against exact arithmetic on what the tiles hold: a
/// score is off by at most |K|_1 max|q| 2^-14, an output by 2^-13 of the largest |V| in sight, plus float rounding.
///
/// `scratch` has tile_attn_scratch_bytes() of as many rows or more, and of this number of blocks and head_dim. With
/// overlap positions and tiles are read before the grid before has ended, except the tile that holds the newest
/// position and those coded in this step: writers of the other tiles must have ended before a launch without overlap.
void tile_attn(gpu::StreamHandle stream, const DeviceAttention& a, std::byte* scratch, const TileAttnPlan& plan);
/// Whether a block of the current device has the shared memory for a pair of such tiles.
bool can_run_tile_attn(const KvTiles& k, const KvTiles& v);
/// With `alone` of exactly so many rows.
int64_t tile_attn_scratch_bytes(int n_rows, int n_heads, int n_kv_heads, int head_dim, int blocks, bool alone = false);
/// Multiprocessors of the current device.
int tile_attn_blocks();

/// Work of one block of a kernel for many queries: of the span of rows [first, first + n) of the list, queries from
/// `first_query` on, where query i is head i % group of row first + i / group; of their tiles part `part` of n_parts.
struct alignas(16) AttnBlock {
  int32_t first = 0, n = 0, first_query = 0;
  int32_t part = 0, n_parts = 1;
  int32_t place = 0;     ///< of its first row among the rows of parts
  int32_t turned = 0;    ///< of its span's first tile among PrefillList's turned tiles
  int32_t n_turned = 0;  ///< of its span
};

/// How prefill attention is cut on a device.
struct PrefillPlan {
  int queries = 0;             ///< of a block
  int blocks = 0;              ///< that run side by side
  int least_tiles = 8;         ///< of a part
  int window = 0;              ///< KvTiles::attention_window
  bool keeps_parts = false;    ///< blocks of a single part have rows of scratch too
  bool by_warpgroups = false;  ///< wide_prefill.h
};
PrefillPlan prefill_attn_plan(int head_dim);
/// Resources that a device gives a block.
struct PrefillDevice {
  int most_shared_bytes = 0;
  bool has_warpgroups = false;
};
PrefillPlan prefill_attn_plan(int head_dim, const PrefillDevice& device);

/// Rows [first, first + n) of the list, at positions from n_past on.
struct PrefillSpan {
  int first = 0, n = 0, n_past = 0;
  int turned = 0, n_turned = 0;  ///< AttnBlock's
};
/// Tiles that a span's blocks may read, of a side and KV head: one of sinks, coded ones, exact ones in the ring of the
/// step.
int turned_tiles(const PrefillPlan& plan, int n_past, int n, int ring_tiles);
/// Appends the blocks of a span, the longest first. Where they are too few for the device, their tiles are cut into up
/// to 16 parts, by the span's own length and position alone. Parts have rows of scratch from `part_rows` on, a query
/// each; returned is where the next rows are.
int add_prefill_blocks(const PrefillPlan& plan, const PrefillSpan& span, int group, int n_kv_heads, int part_rows,
                       std::vector<AttnBlock>& blocks);
/// Adds blocks for one row of the list, whose tiles are cut into n_parts wherever its position is: for recorded steps.
int add_row_blocks(const PrefillPlan& plan, int row, int group, int n_parts, int part_rows,
                   std::vector<AttnBlock>& blocks);
/// Bytes of scratch for so many rows of parts: they grow with the queries of a step, not with the length of a cache.
int64_t prefill_attn_scratch_bytes(int part_rows, int n_kv_heads, int head_dim);

struct PrefillList {
  const AttnBlock* blocks = nullptr;  ///< of add_prefill_blocks(), in device memory
  int n = 0;
  int queries = 0;    ///< PrefillPlan's
  int part_rows = 0;  ///< of all blocks
  std::byte* scratch = nullptr;
  bool of_rows = false;        ///< blocks are those of add_row_blocks(), in many parts
  bool by_warpgroups = false;  ///< PrefillPlan's
  /// [K, V][kv head][n_turned] tiles as f16 in the order that wgmma reads: made in front where there are some.
  std::byte* turned = nullptr;
  int n_turned = 0;
  const AttnBlock* spans = nullptr;  ///< [n_spans] one block of each span that has turned tiles, in device memory
  int n_spans = 0;
};
int64_t turned_tile_bytes(int n_turned, int n_kv_heads, int head_dim);
/// Whether tiles are turned in front: many blocks would turn each of them, and there is room.
bool turns_in_front(const PrefillPlan& plan, int n_blocks, int n_spans, int64_t bytes);

/// Attention of many queries a sequence on tensor cores, tiles in their order: a block walks over its tiles with a
/// running softmax. Tiles are turned to f16 in shared memory as they come: nothing else of the cache's length is
/// kept. A second kernel puts parts together in their order: results do not depend on timing.
///
/// Against exact arithmetic on what the tiles hold, u = 2^-11: a score is off by at most 2 u times scale sum |q k|; an
/// output by at most twice the largest error of a score (relative, to first order) plus 2 u, times the weighted mean of
/// |v|. Values beyond 65504 become infinite. A sequence's result has the same bits alone and beside others.
void prefill_attn(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list);

/// Attention on tensor cores over tiles of rows, which are turned to f16 in shared memory as they come. Blocks are
/// those of add_prefill_blocks() with rows_f16_attn_plan(), and of add_row_blocks() for short spans; errors are bounded
/// as prefill_attn()'s. Parts are put together in their order: results do not depend on timing. Of latent rows a.v is
/// a.k, and a.out [rows of the step, n_heads, n_out] gets the first n_out values of each head's output; else n_out is
/// head_dim.
void rows_f16_attn(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list, int n_out);
/// For spans of so many queries a kv head, or more.
PrefillPlan rows_f16_attn_plan(int head_dim, int n_queries);
/// Parts of each of n_rows rows with blocks of their own.
int rows_f16_attn_parts(const PrefillPlan& plan, int n_rows, int group, int n_kv_heads);

struct RowsList {
  const AttnBlock* blocks = nullptr;  ///< of rows_attn_queries() queries, in device memory
  int n = 0;
  int n_out = 0;  ///< values of a head's output that are wanted, the first ones
};
/// Attention in floats over tiles of rows of any format, up to 512 values wide, latent rows up to kMostLatentDim
/// (row_limits.h). Of latent rows a.v is a.k. a.out [rows of the step, n_heads, n_out]. A block reads all positions
/// that its queries see, so few queries over a long cache are slow.
void rows_attn(gpu::StreamHandle stream, const DeviceAttention& a, const RowsList& list);
/// Queries of a block on the current device, of heads of so many values.
int rows_attn_queries(int head_dim);
/// Whether a block of the current device has the shared memory for rows of so many values.
bool can_run_rows_attn(int head_dim);

}  // namespace ridge
