// The first of decode attention's two kernels: a part of a list's tiles to a partial result. Device code.
//
// A list is what the query heads of a kv head read, up to eight of a token: one kv head's tiles. A block takes one part
// of one list; its warps take tiles in turn, each through a ring of its own in shared memory, and put their results
// together at the end. Tokens of one sequence share a pass over the tiles: their heads fill the rows of one pack of
// eight after the other (kPacks).
// The kinds of K and V are known to the compiler (kK, kV) or kAnyKind, which decides at every tile. Layers with a
// window have kernels of their own (kWindow): others keep their registers.
#pragma once

#include <cmath>
#include <span>

#include "gpu/launch.h"
#include "op/attn/attn_cuda.h"
#include "op/attn/centre_terms.h"

namespace ridge::tiles {

/// A lane's kPer channels of a row: d = lane kPer + i.
template <int kPer>
__device__ __forceinline__ void load_row(const float* row, int lane, float (&x)[kPer]) {
  if constexpr (kPer % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(row + lane * kPer + i));
      x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
  } else {
    const float2 v = __ldcg(reinterpret_cast<const float2*>(row + lane * kPer));
    x[0] = v.x, x[1] = v.y;
  }
}

inline constexpr int kAnyKind = -1;
inline constexpr int kMostPacks = 2;  // of a pass
/// Coded tiles times query heads of a kv head from which on a pass has several packs: in front of that a pass more
/// costs less than parts that take longer.
inline constexpr int kLongRows = 2048;
inline constexpr int kMostParts = 128;  // of a list: what a warp of the second kernel holds in registers

/// How the launch is cut, decided on the host without knowing lengths.
struct Cut {
  int lists = 0;        ///< of a row: kv heads x groups of eight query heads
  int group = 1;        ///< query heads of a kv head
  int head_groups = 1;  ///< of up to eight
  int pass = 1;         ///< tokens that share a pass over the cache: their heads fit into one pack
  int long_pass = 1;    ///< over a long one: into `packs`
  int budget = 0;       ///< parts of a list when there is one row
  int least_shift = 0;  ///< a part has 1 << least_shift tiles at least
  int stages = 2;       ///< of a warp's ring
  int long_rows = kLongRows;
  int packs = 1;       ///< that a part has room for
  bool alone = false;  ///< parts of a pass do not depend on other passes, nor on the pass's later tokens
  float* parts = nullptr;
};

/// Floats of a pack's partial result: top [8], total [8], out [8, head_dim].
constexpr int part_floats(int head_dim) { return kHeads * (head_dim + 2); }

/// Tiles as a query reads them when the cache holds n positions: units first_tile .. n_tiles - 1 are tiles of
/// positions, unit n_tiles the sinks. It sees positions from `seen` on: 0 without a window.
struct Units {
  int n, n_tiles, k_coded, v_coded, n_sinks, n_units, seen, first_tile;

  __device__ Units(const DeviceAttention& a, int n_keys, bool window)
      : n(n_keys), seen(window ? a.k.first_seen(n_keys) : 0), first_tile(seen / kTilePositions) {
    const auto coded = [&](const KvRetention& r) {
      const int newest = n < r.calibration || n < r.window ? 0 : n - r.window;
      return r.tile == kTilePositions ? newest / kTilePositions : (newest + kTilePositions - 1) / kTilePositions;
    };
    n_tiles = (n + kTilePositions - 1) / kTilePositions;
    k_coded = coded(a.k.retention);
    v_coded = coded(a.v.retention);
    n_sinks = min(n, max(a.k.n_sinks, a.v.n_sinks));
    n_units = n_tiles - first_tile + (n_sinks > seen ? 1 : 0);
  }
  /// Whether no row of the step, and no tile coded in the step, is in unit t. `most` is the most rows of a sequence.
  __device__ bool is_settled(int t, int most) const {
    if (t == n_tiles) return n - most >= n_sinks;
    const int coded_before = (most + 2 * kTilePositions - 2) / kTilePositions;  // tiles that the step may have coded
    return (t + 1) * kTilePositions <= n - most && (t >= k_coded || t < k_coded - coded_before) &&
           (t >= v_coded || t < v_coded - coded_before);
  }
};

/// Parts of every list of one pass; they are `first * lists + list`, `(first + 1) * lists + list` and so on.
struct Parts {
  int row = 0, first = 0, n = 0;  ///< row: of the pass's first token in the list of rows
  int n_tokens = 1;
  StepRow of;  ///< its first token

  /// Positions that the last token sees.
  __device__ int n_keys() const { return of.slot < 0 ? 0 : of.position + n_tokens; }
};

__device__ __forceinline__ int n_keys_of(const StepRow& row) { return row.slot < 0 ? 0 : row.position + 1; }

/// A row gets its share of the budget by length, one part at least; the whole budget where rows are cut alone.
__device__ __forceinline__ int parts_of(const Cut& cut, int n_units, int all_units) {
  const int share = cut.alone || n_units == all_units
                        ? cut.budget
                        : int(unsigned(cut.budget) * unsigned(n_units) / unsigned(all_units));
  return max(1, min(share, n_units >> cut.least_shift));
}

/// Units of the pass that begins with row from + lane, and how many tokens it has; 0 where none begins. Tokens of a
/// pass are neighbours of one sequence for which the same tiles are coded and the same sinks exist, so each sees what
/// it would see alone. Whole warps.
struct Pass {
  StepRow row;
  int n_units = 0, n_tokens = 1;

  __device__ __forceinline__ Pass(const DeviceAttention& a, const Cut& cut, bool window, int from) {
    const int lane = int(threadIdx.x) % 32, i = from + lane;
    if (i < a.rows.n) row = a.rows.rows[i];
    const Units units(a, n_keys_of(row), window);
    n_units = units.n_units;
    if (cut.long_pass == 1 || a.rows.most == 1) return;
    const int most = units.k_coded * cut.group >= cut.long_rows ? cut.long_pass : cut.pass;
    const auto grows_by = [&](int value, int step) { return value - __shfl_up_sync(gpu::kAllLanes, value, 1) == step; };
    bool follows = row.slot >= 0 && lane > 0;
    follows &= grows_by(row.slot, 0);
    follows &= grows_by(row.row, 1);
    follows &= grows_by(row.position, 1);
    follows &= grows_by(units.k_coded, 0);
    follows &= grows_by(units.v_coded, 0);
    follows &= grows_by(units.n_sinks, 0);
    if (cut.alone) follows &= grows_by(units.n_tiles, 0);
    const unsigned begins = __ballot_sync(gpu::kAllLanes, !follows), until_here = ~0u >> (31 - lane);
    // The highest bit: HIP has a call in a library for counting zeros from above.
    const int begin = 32 - __ffs(int(__brev(begins & until_here))), next = __ffs(int(begins & ~until_here)) - 1;
    n_tokens = min(most, (next < 0 ? 32 : next) - lane);
    n_units = (lane - begin) % most == 0 ? Units(a, n_keys_of(row) + n_tokens - 1, window).n_units : 0;
  }
};

/// The pass that is_it(parts) wants. Whole warps, all lanes alike.
template <class IsIt>
__device__ __forceinline__ Parts find_parts(const DeviceAttention& a, const Cut& cut, bool window, const IsIt& is_it) {
  if (a.rows.n == 1) {
    const StepRow row = a.rows.rows[0];
    const int n_units = Units(a, n_keys_of(row), window).n_units;
    return {0, 0, parts_of(cut, n_units, n_units), 1, row};
  }
  const int lane = int(threadIdx.x) % 32;
  const Pass of_first_rows(a, cut, window, 0);  // mostly all: what they are is not read twice
  int all = of_first_rows.n_units;
  for (int from = 32; from < a.rows.n; from += 32) all += Pass(a, cut, window, from).n_units;
  all = gpu::warp_sum(all);
  Parts mine;
  for (int from = 0, before = 0; from < a.rows.n; from += 32) {
    const Pass pass = from == 0 ? of_first_rows : Pass(a, cut, window, from);
    mine.row = from + lane;
    mine.n_tokens = pass.n_tokens;
    mine.n = pass.n_units > 0 ? parts_of(cut, pass.n_units, all) : 0;
    int until = mine.n;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(gpu::kAllLanes, until, step);
      if (lane >= step) until += other;
    }
    mine.first = before + until - mine.n;
    before += __shfl_sync(gpu::kAllLanes, until, 31);
    const unsigned found = __ballot_sync(gpu::kAllLanes, mine.n > 0 && is_it(mine));
    if (found) {
      const int at = __ffs(int(found)) - 1;
      const auto of = [&](int value) { return __shfl_sync(gpu::kAllLanes, value, at); };
      const StepRow row{of(pass.row.row), of(pass.row.position), of(pass.row.slot), of(pass.row.ring)};
      return {from + at, of(mine.first), of(mine.n), of(mine.n_tokens), row};
    }
  }
  return {};
}

/// A side of one kv head as one row of the step sees it.
struct SideTiles {
  const KvTiles& side;
  const int32_t* pages;  // of the sequence
  StepRow of;
  int head;

  __device__ SideTiles(const DeviceAttention& a, const KvTiles& tiles, const StepRow& row, int kv_head)
      : side(tiles), pages(a.rows.pages + int64_t(row.slot) * a.rows.page_pitch), of(row), head(kv_head) {}

  /// Address and kind of unit t; the unit of the sinks is tile 0 on a side that has none.
  __device__ const std::byte* at(int t, bool sinks, int n_coded, TileKind& kind) const {
    if (sinks && side.n_sinks > 0) {
      kind = TileKind::f16;
      return side.sink_tile(of.slot, head);
    }
    kind = t < n_coded ? side.kind : side.recent_kind;
    return t < n_coded ? side.coded_tile(pages[t / kPageTiles], head, t) : side.ring_tile(of.ring, head, t);
  }
};

__device__ __forceinline__ void copy_tile(std::byte* to, const std::byte* from, int bytes, int lane) {
#pragma unroll 4
  for (int at = 16 * lane; at < bytes; at += 512) gpu::copy_async16(to + at, from + at);
}

/// Copies kBytes, a size known at compile time: offsets are part of the instructions.
template <int kBytes>
__device__ __forceinline__ void copy_tiles(std::byte* to, const std::byte* from, int lane) {
  to += 16 * lane, from += 16 * lane;
  unrolled<(kBytes + 511) / 512>([&]<int kI>() {
    if (512 * (kI + 1) <= kBytes || 512 * kI + 16 * lane < kBytes) gpu::copy_async16_at<512 * kI>(to, from);
  });
}

template <int kKind, int kDim, int kTiles, int kPacks>
__device__ __forceinline__ void scores_of(TileKind kind, const std::byte* tiles, const Queries<kDim>& queries,
                                          const RotorBytes& levels, int lane, float (&scores)[kPacks][kTiles][8]) {
  if constexpr (kKind == kAnyKind) tile_scores(kind, tiles, queries, levels, lane, scores);
  else tile_scores<TileKind(kKind)>(tiles, queries, levels, lane, scores);
}
template <int kKind, int kDim, int kTiles, int kPacks>
__device__ __forceinline__ void values_of(TileKind kind, const std::byte* tiles, const RotorBytes& levels,
                                          const float (&weights)[kPacks][kTiles][8], const float (&factor)[kPacks],
                                          int lane, float (&out)[kPacks][kDim / 8][2]) {
  if constexpr (kKind == kAnyKind) tile_values<kDim>(kind, tiles, levels, weights, factor, lane, out);
  else tile_values<TileKind(kKind), kDim>(tiles, levels, weights, factor, lane, out);
}
/// Scores of a tile that a warp reads directly: of the side's own kind, or exact (f16 or int8_row).
template <int kKind, int kDim, int kPacks>
__device__ __forceinline__ void exact_scores(TileKind kind, const std::byte* tile, const Queries<kDim>& queries,
                                             const RotorBytes& levels, int lane, float (&scores)[kPacks][1][8]) {
  if (kKind == kAnyKind || int(kind) == kKind) scores_of<kKind>(kind, tile, queries, levels, lane, scores);
  else if (kind == TileKind::f16) tile_scores<TileKind::f16>(tile, queries, levels, lane, scores);
  else tile_scores<TileKind::int8_row>(tile, queries, levels, lane, scores);
}
template <int kKind, int kDim, int kPacks>
__device__ __forceinline__ void exact_values(TileKind kind, const std::byte* tile, const RotorBytes& levels,
                                             const float (&weights)[kPacks][1][8], const float (&factor)[kPacks],
                                             int lane, float (&out)[kPacks][kDim / 8][2]) {
  if (kKind == kAnyKind || int(kind) == kKind) values_of<kKind, kDim>(kind, tile, levels, weights, factor, lane, out);
  else if (kind == TileKind::f16) tile_values<TileKind::f16, kDim>(tile, levels, weights, factor, lane, out);
  else tile_values<TileKind::int8_row, kDim>(tile, levels, weights, factor, lane, out);
}

/// Tokens of the pass behind the one whose head is the lane's row of each pack.
template <int kPacks>
struct Later {
  int at[kPacks];

  __device__ Later(int n_tokens, int n_heads, int lane) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)  // a division takes as long as a load
      at[p] = n_tokens == 1 ? 0 : max(0, n_tokens - 1 - (kHeads * p + lane / 4) / n_heads);
  }
};

/// Scores of positions that the lane's query does not see, or sees as sinks, become -infinity. `later`: tokens of the
/// pass behind its own.
__device__ __forceinline__ void mask(const Units& units, int later, int t, bool sinks, int lane, float (&scores)[8]) {
  const int from = max(t == 0 ? units.n_sinks : 0, units.seen - (sinks ? 0 : t * kTilePositions));
  const int to = sinks ? units.n_sinks : units.n - later - t * kTilePositions;
  if (from <= 0 && to >= kTilePositions) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int p = 8 * (i / 2) + 2 * (lane % 4) + i % 2;
    if (p < from || p >= to) scores[i] = -INFINITY;
  }
}

/// Masks tile n of kTiles, unit t, for all packs.
template <int kTiles, int kPacks>
__device__ __forceinline__ void mask(const Units& units, const Later<kPacks>& later, int t, int n, bool sinks, int lane,
                                     float (&scores)[kPacks][kTiles][8]) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p) mask(units, later.at[p], t, sinks, lane, scores[p][n]);
}

/// The warps' results, side by side in shared memory. Rows are 8 floats apart in banks: stores of a quarter warp and
/// loads of 16 bytes meet each bank once.
template <int kDim>
struct WarpResults {
  static constexpr int kPitch = kDim + 8;
  float* base;

  __device__ float* tops() const { return base; }                  // [warps, 8]
  __device__ float* totals() const { return base + 16 * kHeads; }  // [warps, 8]
  __device__ float* factors() const { return base + 32 * kHeads; }
  __device__ float* out(int warp, int head) const { return base + 48 * kHeads + (warp * kHeads + head) * kPitch; }
  static constexpr int bytes(int warps) { return 4 * (48 * kHeads + warps * kHeads * kPitch); }
};

/// Puts a pack's results of the first `warps` warps together: a part in global memory. The whole block; at most 16
/// warps.
template <int kDim, int kPacks>
__device__ __forceinline__ void store_part(const State<kDim, kPacks>& state, int pack, const WarpResults<kDim>& results,
                                           int warps, int n_heads, float* part) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (warp < warps) {
    const int r = lane / 4, c = lane % 4;
    const float total = quad_sum(state.total[pack]);
    if (c == 0) results.tops()[warp * kHeads + r] = state.top[pack], results.totals()[warp * kHeads + r] = total;
    float* const mine = results.out(warp, r);
#pragma unroll
    for (int e = 0; e < kDim / 8; ++e)
      *reinterpret_cast<float2*>(mine + 8 * e + 2 * c) = make_float2(state.out[pack][e][0], state.out[pack][e][1]);
  }
  __syncthreads();
  for (int at = int(threadIdx.x); at < 16 * kHeads; at += int(blockDim.x)) {
    const int head = at / 16, w = at % 16;
    const float here = w < warps ? results.tops()[w * kHeads + head] : kNever;
    float top = here;
#pragma unroll
    for (int step = 1; step < 16; step *= 2) top = fmaxf(top, __shfl_xor_sync(gpu::kAllLanes, top, step));
    const float worth = gpu::fast_exp2(here - top);
    float sum = w < warps ? worth * results.totals()[w * kHeads + head] : 0.0f;
#pragma unroll
    for (int step = 1; step < 16; step *= 2) sum += __shfl_xor_sync(gpu::kAllLanes, sum, step);
    results.factors()[head * 16 + w] = worth;
    if (w == 0) part[head] = top, part[kHeads + head] = sum;
  }
  __syncthreads();
  for (int slot = int(threadIdx.x); slot < n_heads * kDim / 4; slot += int(blockDim.x)) {
    const int head = slot / (kDim / 4), d = slot % (kDim / 4) * 4;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int w = 0; w < warps; ++w) {
      const float4 value = *reinterpret_cast<const float4*>(results.out(w, head) + d);
      const float worth = results.factors()[head * 16 + w];
      sum.x = fmaf(worth, value.x, sum.x);
      sum.y = fmaf(worth, value.y, sum.y);
      sum.z = fmaf(worth, value.z, sum.z);
      sum.w = fmaf(worth, value.w, sum.w);
    }
    *reinterpret_cast<float4*>(part + 2 * kHeads + head * kDim + d) = sum;
  }
}

/// Bytes of a pair of tiles.
constexpr int pair_bytes(TileKind k, TileKind v, int head_dim) {
  return TileShape(k, head_dim).bytes + TileShape(v, head_dim).bytes;
}

/// Pairs of tiles that a warp takes at a time. Small ones come two by two: they are many instructions a byte, of which
/// two share the softmax and the sums, and more of them can run side by side.
template <int kDim, int kK, int kV>
constexpr int tiles_at_a_time() {
  if (kK == kAnyKind || kV == kAnyKind || is_half(TileKind(kK)) || is_half(TileKind(kV))) return 1;
  return pair_bytes(TileKind(kK), TileKind(kV), kDim) <= 5 * 1024 ? 2 : 1;
}
/// Warps of a block at most: 12 leave a thread 168 registers, 8 leave 255. Small pairs are many instructions a byte and
/// gain from more warps: the smallest, whose rings fit, from 16 with 128 registers; large pairs have bytes enough on
/// their way with 4.
template <int kDim, int kK, int kV>
constexpr int most_warps() {
  if (kK == kAnyKind || kV == kAnyKind) return 8;
  if (pair_bytes(TileKind(kK), TileKind(kV), kDim) >= 16 * 1024) return 4;
  if (tiles_at_a_time<kDim, kK, kV>() == 1 || kDim > 128) return 8;
  return 12;
}

/// Packs of eight query heads that meet a tile as it is read. F16 is bound by memory, and a second pack costs little;
/// of smaller formats it costs what a second pass does, or more: it leaves a warp too few registers.
template <int kDim, int kK, int kV>
constexpr int most_packs() {
  return kDim <= 128 && kK != kAnyKind && kV != kAnyKind && is_half(TileKind(kK)) && is_half(TileKind(kV)) ? kMostPacks
                                                                                                           : 1;
}

template <int kDim, int kK, int kV, bool kWindow, bool kMayTurn>
__global__ void __launch_bounds__(32 * most_warps<kDim, kK, kV>(), 1)
    attn_split_kernel(const DeviceAttention a, const Cut cut) {
  constexpr int kTiles = tiles_at_a_time<kDim, kK, kV>(), kPer = kDim / 32, kPacksOfPair = most_packs<kDim, kK, kV>();
  std::byte* const shared = gpu::dynamic_shared<std::byte>();
  const Queries<kDim> queries{shared};
  bool turns = kMayTurn && a.k.turn.n_pairs > 0;
  std::byte* const weights = shared + kPacksOfPair * Queries<kDim>::kBytes;
  constexpr TermRounds kMostTerms(most_warps<kDim, kK, kV>(), kTiles);
  float* const terms = reinterpret_cast<float*>(weights + CentreTerms<kDim>::kWeightBytes);
  std::byte* const behind_queries = weights + (turns ? CentreTerms<kDim>::kWeightBytes + kMostTerms.bytes() : 0);
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
  const TileKind k_kind = kK == kAnyKind ? a.k.kind : TileKind(kK), v_kind = kV == kAnyKind ? a.v.kind : TileKind(kV);
  const int k_bytes = TileShape(k_kind, kDim).bytes, v_bytes = TileShape(v_kind, kDim).bytes;
  const int stage_bytes = kTiles * (k_bytes + v_bytes), stages = cut.stages;
  std::byte* const ring = behind_queries + warp * stages * stage_bytes;
  const int list = int(blockIdx.x), row = int(blockIdx.y);
  const int kv_head = cut.head_groups == 1 ? list : list / cut.head_groups;
  const int first_head = kv_head * cut.group + (list - kv_head * cut.head_groups) * kHeads;
  const int n_heads = min(kHeads, (kv_head + 1) * cut.group - first_head);

  // Positions and all tiles but the last are older than the grid before: only what it may have written waits for it.
  gpu::let_next_grid_start();
  const Parts parts =
      find_parts(a, cut, kWindow, [&](const Parts& p) { return row >= p.first && row < p.first + p.n; });
  const int part = row - parts.first;
  if (part >= parts.n || parts.of.slot < 0) return;
  const Units units(a, parts.n_keys(), kWindow);
  // Rows of scores are heads of the first token, then of the next one.
  const int n_rows = n_heads * parts.n_tokens;
  // Of all steps of kTiles units a part takes `least`, the first `longer` parts one more.
  const int n_steps = (units.n_units + kTiles - 1) / kTiles;
  const int least = int(unsigned(n_steps) / unsigned(parts.n)), longer = n_steps - least * parts.n;
  static_assert(!kWindow || kTiles == 1);  // windows begin at any tile
  const int first = units.first_tile + kTiles * (part * least + min(part, longer));
  const int last = min(units.first_tile + units.n_units, first + kTiles * (least + (part < longer ? 1 : 0)));
  const SideTiles k(a, a.k, parts.of, kv_head), v(a, a.v, parts.of, kv_head);

  // Steps coded on both sides come through the ring; the rest is read where it lies. The tiles of a step are neighbours
  // in memory, also on pages. Numbers of pages are fetched for 32 of the warp's steps at a time, one a lane.
  static_assert(kPageTiles % kTiles == 0);
  // Parts of few units are read tile by tile, so that each has a warp of its own.
  const bool alone = kTiles > 1 && last - first <= warps;
  const int coded = min(min(units.k_coded, units.v_coded), last),
            streamed = alone ? first : max(first, coded - (coded - first) % kTiles);
  int page_of_lane = 0, fed = 0, fed_tile = first + kTiles * warp;
  const auto feed = [&](int stage) {
    if (fed % 32 == 0) {
      const int of_lane = fed_tile + kTiles * lane * warps;
      page_of_lane = of_lane < streamed ? k.pages[of_lane / kPageTiles] : 0;
    }
    const int page = __shfl_sync(gpu::kAllLanes, page_of_lane, fed++ % 32);
    if (fed_tile < streamed) {
      std::byte* to = ring + stage * stage_bytes;
      const std::byte *const k_from = a.k.coded_tile(page, kv_head, fed_tile), *const v_from = a.v.coded_tile(
                                                                                   page, kv_head, fed_tile);
      if constexpr (kTiles > 1) {
        copy_tiles<kTiles * TileShape(TileKind(kK), kDim).bytes>(to, k_from, lane);
        copy_tiles<kTiles * TileShape(TileKind(kV), kDim).bytes>(to + kTiles * k_bytes, v_from, lane);
      } else {
        copy_tile(to, k_from, k_bytes, lane);
        copy_tile(to + k_bytes, v_from, v_bytes, lane);
      }
    }
    fed_tile += kTiles * warps;
    gpu::copy_commit();
  };
  // A tile is written as long as it is the last that is coded, or one that has rows of this step.
  const int settled = min(units.k_coded, units.v_coded) - 1 - (a.rows.most + kTilePositions - 2) / kTilePositions;
  bool waited = false;
  // A unit alone takes the room of two warps where half of them have none.
  const int own = first + warp, own_bytes = (last - first <= warps / 2 ? 2 : 1) * stages * stage_bytes;
  std::byte* const own_k = behind_queries + warp * own_bytes;
  const std::byte* own_v = nullptr;  // null: not in shared memory
  if (kTiles > 1 && alone) {
    if (own < last) {
      TileKind k_own, v_own;
      const bool sinks = own == units.n_tiles;
      if (!units.is_settled(own, a.rows.most)) gpu::wait_for_previous_grid(), waited = true;
      const std::byte* const k_from = k.at(sinks ? 0 : own, sinks, units.k_coded, k_own);
      const std::byte* const v_from = v.at(sinks ? 0 : own, sinks, units.v_coded, v_own);
      const int k_size = TileShape(k_own, kDim).bytes, v_size = TileShape(v_own, kDim).bytes;
      if (k_size + v_size <= own_bytes) {
        own_v = own_k + k_size;
        copy_tile(own_k, k_from, k_size, lane);
        gpu::copy_commit();
        copy_tile(own_k + k_size, v_from, v_size, lane);
        gpu::copy_commit();
      }
    }
  } else {
#pragma unroll 1
    for (int s = 0; s + 1 < stages; ++s) {
      if (!waited && fed_tile + kTiles > settled) gpu::wait_for_previous_grid(), waited = true;
      feed(s);
    }
  }
  // Terms of the turning centre are made in groups of eight units, first of those read directly. The angles of a warp's
  // first group come while queries do.
  const int first_streamed = first + kTiles * warp, first_direct = alone ? first : streamed;
  const TermRounds rounds(warps, kTiles);
  CentreTerms<kDim> centre;
  const auto groups_of = [](int n_units) {
    return (max(0, n_units) + CentreTerms<kDim>::kUnits - 1) / CentreTerms<kDim>::kUnits;
  };
  const auto load_angles = [&](int group, int n_direct, int direct_from, int coded_from) {
    const bool is_coded = group >= n_direct;
    const int from = is_coded ? coded_from + 8 * (group - n_direct) : direct_from + 8 * group;
    const int unit = min(from + lane / 4, (is_coded ? streamed : last) - 1);
    centre.load(a.k.turn, unit < units.n_tiles ? unit : 0, lane);
  };
  if (turns) turns = is_set<kPer>(a.k.centre_of(parts.of.slot, kv_head), lane);
  if (turns) {
    const int n_direct = groups_of(min(last - first_direct, rounds.direct));
    if (warp < n_direct + groups_of(min(streamed - first, rounds.coded)))
      load_angles(warp, n_direct, first_direct, first);
  }
  if (!waited) gpu::wait_for_previous_grid();

  const RotorBytes levels;
  const QueryForms forms = query_forms(k_kind, a.k.recent_kind, a.k.ring_tiles > 0, units.n_sinks > 0);
  const auto attend = [&]<int kPacks>() __attribute__((always_inline)) {
    const Later<kPacks> later(parts.n_tokens, n_heads, lane);
    for (int r = warp; r < kPacks * kHeads; r += warps) {
      const int token = parts.n_tokens == 1 ? 0 : r / n_heads, head = first_head + r - token * n_heads;
      const int64_t at = (int64_t(parts.of.row + token) * a.n_heads + head) * kDim;
      float x[kPer] = {}, of_angles[kPer] = {};
      if (r < n_rows) {
        load_row(a.q + at, lane, x);
        if (turns) load_row(a.q_weights + at, lane, of_angles);
      }
#pragma unroll
      for (int j = 0; j < kPer; ++j) x[j] *= a.scale * kLog2E, of_angles[j] *= a.scale * kLog2E;
      put_query<kDim>(queries.pack(r / kHeads), r % kHeads, x, forms, lane);
      if (turns) CentreTerms<kDim>::put_weights(weights, r % kHeads, of_angles, lane);
    }
    __syncthreads();

    State<kDim, kPacks> state;
    float worth[kPacks];
    // Units read directly go from the last warp down: the first ones have most of the steps.
    int stage = 0, t_direct = alone ? own : streamed + warps - 1 - warp, t = first_streamed;
#pragma unroll 1
    for (int direct_from = first_direct, coded_from = first;;) {
      if constexpr (kMayTurn) {
        if (turns) {
          const int n_direct = groups_of(min(last - direct_from, rounds.direct)),
                    n_groups = n_direct + groups_of(min(streamed - coded_from, rounds.coded));
          if (coded_from > first) __syncthreads();  // the terms before are read
#pragma unroll 1
          for (int g = warp; g < n_groups; g += warps) {
            if (g > warp || coded_from > first) load_angles(g, n_direct, direct_from, coded_from);
            const int at = 8 * g + (g >= n_direct ? rounds.first_coded() - 8 * n_direct : 0);
            centre.multiply(weights, a.k.turn.pitch(), lane, terms + kHeads * at);
          }
          __syncthreads();
        }
      }
#pragma unroll 1
      for (; t_direct < last && (!kMayTurn || t_direct < direct_from + rounds.direct); t_direct += warps) {
        const bool sinks = t_direct == units.n_tiles;
        TileKind kind;
        float scores[kPacks][1][8];
        const std::byte* tile = k.at(sinks ? 0 : t_direct, sinks, units.k_coded, kind);
        if (own_v) {
          tile = own_k;
          gpu::copy_wait<1>();
          __syncwarp();
        }
        exact_scores<kK>(kind, tile, queries, levels, lane, scores);
        const float term[1] = {kMayTurn && turns ? terms[kHeads * (t_direct - direct_from) + lane / 4] : 0.0f};
        mask(units, later, t_direct, 0, sinks, lane, scores);
        state.template take<kMayTurn>(scores, term, worth);
        tile = v.at(sinks ? 0 : t_direct, sinks, units.v_coded, kind);
        if (own_v) {
          tile = own_v;
          gpu::copy_wait<0>();
          __syncwarp();
        }
        exact_values<kV, kDim>(kind, tile, levels, scores, worth, lane, state.out);
      }
#pragma unroll 1
      for (; t < streamed && (!kMayTurn || t < coded_from + rounds.coded); t += kTiles * warps) {
        feed(stage == 0 ? stages - 1 : stage - 1);
        if (stages == 4) gpu::copy_wait<3>();
        else if (stages == 3) gpu::copy_wait<2>();
        else gpu::copy_wait<1>();
        __syncwarp();
        const std::byte* const tile = ring + stage * stage_bytes;
        float scores[kPacks][kTiles][8];
        scores_of<kK>(k_kind, tile, queries, levels, lane, scores);
        float term[kTiles] = {};
        if (kMayTurn && turns)
#pragma unroll
          for (int n = 0; n < kTiles; ++n)
            term[n] = terms[kHeads * (rounds.first_coded() + t - coded_from + n) + lane / 4];
        if (t == 0 || t == units.first_tile || t + kTiles > (units.n + 1 - parts.n_tokens) / kTilePositions)
#pragma unroll
          for (int n = 0; n < kTiles; ++n) mask(units, later, t + n, n, false, lane, scores);
        state.template take<kMayTurn>(scores, term, worth);
        values_of<kV, kDim>(v_kind, tile + kTiles * k_bytes, levels, scores, worth, lane, state.out);
        __syncwarp();  // all lanes have read the stage that is filled next
        stage = stage + 1 == stages ? 0 : stage + 1;
      }
      if constexpr (!kMayTurn) break;
      direct_from += rounds.direct;
      coded_from += rounds.coded;
      if (direct_from >= last && coded_from >= streamed) break;
    }
    gpu::copy_wait<0>();
    __syncthreads();
    const int busy = min(warps, alone ? last - first : last > streamed ? warps : (streamed - first) / kTiles);
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      const int n_here = min(kHeads, n_rows - kHeads * pack);
      if (n_here <= 0) break;
      if (pack > 0) __syncthreads();
      store_part<kDim>(state, pack, {reinterpret_cast<float*>(behind_queries)}, busy, n_here,
                       cut.parts + ((int64_t(row) * cut.lists + list) * kPacksOfPair + pack) * part_floats(kDim));
    }
  };
  if (kPacksOfPair > 1 && n_rows > kHeads) attend.template operator()<kPacksOfPair>();
  else attend.template operator()<1>();
}

/// One of the kernels above, as the host sees it; k and v say nothing of the one for every pair.
struct SplitKernel {
  TileKind k, v;
  bool may_turn;  ///< serves a turning centre of K
  int most_warps, tiles_at_a_time, packs;
  void (*launch)(const gpu::Grid& grid, const DeviceAttention& a, const Cut& cut);
};

template <int kDim, int kK, int kV, bool kWindow, bool kMayTurn>
void launch_split(const gpu::Grid& grid, const DeviceAttention& a, const Cut& cut) {
  constexpr auto kKernel = attn_split_kernel<kDim, kK, kV, kWindow, kMayTurn>;
  gpu::allow_shared_bytes("shared memory of attention", kKernel, grid.shared_bytes);
  gpu::launch("attention over tiles", kKernel, grid, a, cut);
}

template <int kDim, TileKind kK, TileKind kV, bool kMayTurn = false>
constexpr SplitKernel split_kernel() {
  constexpr int kOfK = int(kK), kOfV = int(kV);
  return {kK,
          kV,
          kMayTurn,
          most_warps<kDim, kOfK, kOfV>(),
          tiles_at_a_time<kDim, kOfK, kOfV>(),
          most_packs<kDim, kOfK, kOfV>(),
          launch_split<kDim, kOfK, kOfV, false, kMayTurn>};
}
template <int kDim, bool kWindow>
constexpr SplitKernel any_split_kernel() {
  return {{},
          {},
          true,
          most_warps<kDim, kAnyKind, kAnyKind>(),
          1,
          1,
          launch_split<kDim, kAnyKind, kAnyKind, kWindow, true>};
}

/// Kernels for rows of head_dim values: pairs that are worth a kernel of their own, then the one for all, then the one
/// for all of layers with a window.
std::span<const SplitKernel> split_kernels_64();
std::span<const SplitKernel> split_kernels_128();
std::span<const SplitKernel> split_kernels_256();

}  // namespace ridge::tiles
