// The first of decode attention's two kernels: a part of a list's tiles to a partial result. Device code.
//
// A list is what eight query heads of a kv head read: one kv head's tiles. A block takes one part of one list; its warps
// share the part's tiles, each fetches its own through room of its own in shared memory, and they put their results
// together at the end. The kinds of K and V are known to the compiler (kK, kV) or kAnyKind, which decides at every tile.
//
// Tiles coded on both sides come in pieces of kPiece neighbours, for each of which a warp has two places. A step takes one
// piece or two: their softmax is one, and sums of V are turned to floats once. All other tiles and the sinks come alone. A
// place is filled again as soon as it has been read.
#pragma once

#include <span>

#include "gpu/launch.h"
#include "op/attn/attn_cuda.h"
#include "op/attn/tile_products.h"

namespace ridge::tiles {

inline constexpr int kAnyKind = -1;
inline constexpr int kMostParts = 128;  // of a list: what a warp of the second kernel holds in registers

/// How the launch is cut, decided on the host without knowing lengths.
struct Cut {
  int lists = 0;        ///< of a row: kv heads x groups of eight query heads
  int group = 1;        ///< query heads of a kv head
  int head_groups = 1;  ///< of up to eight
  int budget = 0;       ///< parts of a list when there is one row
  int least_shift = 0;  ///< a part has 1 << least_shift tiles at least
  int v_at = 0;         ///< offset of V's pieces in a warp's room
  int warp_bytes = 0;   ///< of a warp's room
  float* parts = nullptr;
};

/// Floats of a partial result: top [8], total [8], out [8, head_dim].
constexpr int part_floats(int head_dim) { return kHeads * (head_dim + 2); }

/// Tiles as a query that sees n positions reads them: units 0 .. n_tiles - 1 are tiles of positions, unit n_tiles the
/// sinks.
struct Units {
  int n, n_tiles, k_coded, v_coded, n_sinks, n_units;

  /// Whether no row of the step, and no tile coded in the step, is in unit t. `most` is the most rows of a sequence.
  __device__ bool is_settled(int t, int most) const {
    if (t == n_tiles) return n - most >= n_sinks;
    const int coded_before = (most + 2 * kTilePositions - 2) / kTilePositions;  // tiles that the step may have coded
    return (t + 1) * kTilePositions <= n - most && (t >= k_coded || t < k_coded - coded_before) &&
           (t >= v_coded || t < v_coded - coded_before);
  }

  __device__ Units(const DeviceAttention& a, int n_keys) : n(n_keys) {
    const auto coded = [&](const KvRetention& r) {
      const int newest = n < r.calibration || n < r.window ? 0 : n - r.window;
      return r.tile == kTilePositions ? newest / kTilePositions : (newest + kTilePositions - 1) / kTilePositions;
    };
    n_tiles = (n + kTilePositions - 1) / kTilePositions;
    k_coded = coded(a.k.retention);
    v_coded = coded(a.v.retention);
    n_sinks = min(n, max(a.k.n_sinks, a.v.n_sinks));
    n_units = n_tiles + (n_sinks > 0 ? 1 : 0);
  }
};

/// Parts of every list of one row; they are `first * lists + list`, `(first + 1) * lists + list` and so on.
struct Parts {
  int row = 0, first = 0, n = 0;  ///< row: in the list of rows
  StepRow of;
};

__device__ __forceinline__ int n_keys_of(const StepRow& row) { return row.slot < 0 ? 0 : row.position + 1; }

/// A row gets its share of the budget by length, one part at least.
__device__ __forceinline__ int parts_of(const Cut& cut, int n_units, int all_units) {
  const int share =
      n_units == all_units ? cut.budget : int(unsigned(cut.budget) * unsigned(n_units) / unsigned(all_units));
  return max(1, min(share, n_units >> cut.least_shift));
}

/// The row that is_it(parts) wants. Whole warps, all lanes alike.
template <class IsIt>
__device__ __forceinline__ Parts find_parts(const DeviceAttention& a, const Cut& cut, const IsIt& is_it) {
  const StepRow* const rows = a.rows.rows;
  if (a.rows.n == 1) {
    const StepRow row = rows[0];
    const int n_units = Units(a, n_keys_of(row)).n_units;
    return {0, 0, parts_of(cut, n_units, n_units), row};
  }
  const int lane = int(threadIdx.x) % 32;
  int all = 0;
  for (int from = 0; from < a.rows.n; from += 32)
    all += from + lane < a.rows.n ? Units(a, n_keys_of(rows[from + lane])).n_units : 0;
  all = gpu::warp_sum(all);
  Parts mine;
  for (int from = 0, before = 0; from < a.rows.n; from += 32) {
    mine.row = from + lane;
    mine.n = mine.row < a.rows.n ? parts_of(cut, Units(a, n_keys_of(rows[mine.row])).n_units, all) : 0;
    int until = mine.n;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(gpu::kAllLanes, until, step);
      if (lane >= step) until += other;
    }
    mine.first = before + until - mine.n;
    before += __shfl_sync(gpu::kAllLanes, until, 31);
    const unsigned found = __ballot_sync(gpu::kAllLanes, mine.row < a.rows.n && is_it(mine));
    if (found) {
      const int at = __ffs(int(found)) - 1;
      return {from + at, __shfl_sync(gpu::kAllLanes, mine.first, at), __shfl_sync(gpu::kAllLanes, mine.n, at),
              rows[from + at]};
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

  // Of unit t; the unit of the sinks is tile 0 on a side that has none.
  __device__ TileKind kind_of(int t, bool sinks, int n_coded) const {
    if (sinks && side.n_sinks > 0) return TileKind::f16;
    return (sinks ? 0 : t) < n_coded ? side.kind : side.recent_kind;
  }
  __device__ const std::byte* at(int t, bool sinks, int n_coded) const {
    if (sinks && side.n_sinks > 0) return side.sink_tile(of.slot, head);
    if (sinks) t = 0;
    return t < n_coded ? side.coded_tile(pages[t / kPageTiles], head, t) : side.ring_tile(of.ring, head, t);
  }
};

/// By the whole warp.
__device__ __forceinline__ void copy_tile(std::byte* to, const std::byte* from, int bytes, int lane) {
#pragma unroll 4
  for (int at = 16 * lane; at < bytes; at += 512) gpu::copy_async16(to + at, from + at);
}
template <int kBytes>
__device__ __forceinline__ void copy_tiles(std::byte* to, const std::byte* from, int lane) {
  to += 16 * lane, from += 16 * lane;
  unrolled<(kBytes + 511) / 512>([&]<int kI>() {
    if (512 * (kI + 1) <= kBytes || 512 * kI + 16 * lane < kBytes) gpu::copy_async16_at<512 * kI>(to, from);
  });
}

/// f.template operator()<kind>() of a tile that is coded on both sides.
template <int kKind, class F>
__device__ __forceinline__ void with_coded(TileKind kind, F&& f) {
  if constexpr (kKind == kAnyKind) with_kind(kind, f);
  else f.template operator()<TileKind(kKind)>();
}
/// The same of any tile: coded, or exact in f16 or int8_row.
template <int kKind, class F>
__device__ __forceinline__ void with_single(TileKind kind, F&& f) {
  if (kKind == kAnyKind || int(kind) == kKind) with_coded<kKind>(kind, f);
  else if (kind == TileKind::f16) f.template operator()<TileKind::f16>();
  else f.template operator()<TileKind::int8_row>();
}

/// Scores of positions that the query does not see, or sees as sinks, become -infinity.
__device__ __forceinline__ void mask(const Units& units, int t, int lane, float (&scores)[8]) {
  const bool sinks = t == units.n_tiles;
  const int from = t == 0 ? units.n_sinks : 0, to = sinks ? units.n_sinks : units.n - t * kTilePositions;
  if (from == 0 && to >= kTilePositions) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int p = 8 * (i / 2) + 2 * (lane % 4) + i % 2;
    if (p < from || p >= to) scores[i] = -INFINITY;
  }
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

/// Puts the results of the first `warps` warps together: a part in global memory. The whole block; at most 16 warps.
template <int kDim>
__device__ __forceinline__ void store_part(const State<kDim>& state, const WarpResults<kDim>& results, int warps,
                                           int n_heads, float* part) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (warp < warps) {
    const int r = lane / 4, c = lane % 4;
    const float total = quad_sum(state.total);
    if (c == 0) results.tops()[warp * kHeads + r] = state.top, results.totals()[warp * kHeads + r] = total;
    float* const mine = results.out(warp, r);
#pragma unroll
    for (int e = 0; e < kDim / 8; ++e)
      *reinterpret_cast<float2*>(mine + 8 * e + 2 * c) = make_float2(state.out[e][0], state.out[e][1]);
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

/// Tiles of a piece: small ones are many instructions a byte, some of which two can share.
template <int kDim, int kK, int kV>
constexpr int piece_tiles() {
  if (kK == kAnyKind || kV == kAnyKind || is_half(TileKind(kK)) || is_half(TileKind(kV))) return 1;
  return pair_bytes(TileKind(kK), TileKind(kV), kDim) <= 5 * 1024 ? 2 : 1;
}
/// Pieces of a step: two small ones, unless a scale a block fills the registers.
template <int kDim, int kK, int kV>
constexpr int step_pieces() {
  if (piece_tiles<kDim, kK, kV>() == 1) return 1;
  return has_blocks(TileKind(kK)) || has_blocks(TileKind(kV)) ? 1 : 2;
}
/// Places of a warp for pieces of one side.
inline constexpr int kPlaces = 2;
/// Warps of a block at most: 12 leave a thread 168 registers, 8 leave 255. Small pairs are many instructions a byte and
/// gain from more warps; large pairs have bytes enough on their way with 4.
template <int kDim, int kK, int kV>
constexpr int most_warps() {
  if (kK == kAnyKind || kV == kAnyKind) return 8;
  if (pair_bytes(TileKind(kK), TileKind(kV), kDim) >= 16 * 1024) return 4;
  return piece_tiles<kDim, kK, kV>() > 1 && kDim <= 128 ? 12 : 8;
}

/// a / b for 0 <= a < 2^21, 0 < b: a division of integers is a long chain, and the kernel is short.
__device__ __forceinline__ int quotient(int a, int b) {
  return int((float(a) + 0.5f) * gpu::fast_reciprocal(float(b)));
}

/// The work of a part, dealt to its warps in turn so that neighbours are read at the same time: pieces, then from the next
/// warp on single units. The last part has what no piece is made of. All units are single where warps have one each at
/// most. A warp's piece i is piece first_piece + i warps of all, its single j unit first_single + j.
template <int kPiece>
struct Share {
  int first_piece, n_pieces;                ///< of the warp
  int first_single, n_singles, own_single;  ///< of the part; the warp has own_single, own_single + warps, ...

  __device__ Share(const Units& units, int part, int n, int warps, int warp) {
    const int coded = min(min(units.k_coded, units.v_coded), units.n / kTilePositions);
    const int all = kPiece > 1 && units.n_units <= n * warps ? 0 : coded / kPiece;
    const int rest = units.n_units - kPiece * all, cut = all > 0 ? all : rest;
    const int least = quotient(cut, n), longer = cut - least * n;  // the first parts have one more
    const int begin = part * least + min(part, longer), mine = least + (part < longer ? 1 : 0);
    const int pieces = all > 0 ? mine : 0, rounds = quotient(pieces, warps), left = pieces - rounds * warps;
    first_piece = begin + warp;
    n_pieces = rounds + (warp < left ? 1 : 0);
    first_single = kPiece * all + (all > 0 ? 0 : begin);
    n_singles = all == 0 ? mine : part + 1 == n ? rest : 0;
    own_single = warp - left + (warp < left ? warps : 0);
  }
};

template <int kDim, int kK, int kV>
__global__ void __launch_bounds__(32 * most_warps<kDim, kK, kV>(), 1)
    attn_split_kernel(const DeviceAttention a, const Cut cut) {
  constexpr int kPiece = piece_tiles<kDim, kK, kV>(), kPieces = step_pieces<kDim, kK, kV>(), kPer = kDim / 32;
  static_assert(kPageTiles % kPiece == 0);  // the tiles of a piece are neighbours in memory
  std::byte* const shared = gpu::dynamic_shared<std::byte>();
  const Queries<kDim> queries{shared};
  std::byte* const room = shared + Queries<kDim>::kBytes;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
  const TileKind k_kind = kK == kAnyKind ? a.k.kind : TileKind(kK), v_kind = kV == kAnyKind ? a.v.kind : TileKind(kV);
  const int k_bytes = TileShape(k_kind, kDim).bytes, v_bytes = TileShape(v_kind, kDim).bytes;  // of a tile
  std::byte *const k_room = room + warp * cut.warp_bytes, *const v_room = k_room + cut.v_at;
  const int list = int(blockIdx.x), row = int(blockIdx.y);
  const int kv_head = cut.head_groups == 1 ? list : list / cut.head_groups;
  const int first_head = kv_head * cut.group + (list - kv_head * cut.head_groups) * kHeads;
  const int n_heads = min(kHeads, (kv_head + 1) * cut.group - first_head);

  // Positions and settled tiles are older than the grid before: only what it may have written waits for it.
  gpu::let_next_grid_start();
  const Parts parts = find_parts(a, cut, [&](const Parts& p) { return row >= p.first && row < p.first + p.n; });
  const int part = row - parts.first;
  if (part >= parts.n || parts.of.slot < 0) return;
  const Units units(a, n_keys_of(parts.of));
  const SideTiles k(a, a.k, parts.of, kv_head), v(a, a.v, parts.of, kv_head);
  const Share<kPiece> share(units, part, parts.n, warps, warp);

  // Numbers of pages are fetched for 32 of the warp's pieces at a time, one a lane. Each start is a group of copies,
  // empty where there is nothing to fetch: what is waited for is known by what was started after it.
  const int n_pieces = share.n_pieces;
  const auto tile_of = [&](int piece) { return kPiece * (share.first_piece + piece * warps); };
  int page_of_lane = 0;
  const auto fetch_pages = [&](int piece) {
    if (piece % 32 == 0) page_of_lane = piece + lane < n_pieces ? k.pages[tile_of(piece + lane) / kPageTiles] : 0;
  };
  const auto start_piece = [&](int piece, bool is_k) {
    const int page = __shfl_sync(gpu::kAllLanes, page_of_lane, piece % 32);
    if (piece < n_pieces) {
      const int bytes = kPiece * (is_k ? k_bytes : v_bytes);
      std::byte* const to = (is_k ? k_room : v_room) + piece % kPlaces * bytes;
      const std::byte* const from = (is_k ? a.k : a.v).coded_tile(page, kv_head, tile_of(piece));
      if constexpr (kK == kAnyKind) copy_tile(to, from, bytes, lane);
      else if (is_k) copy_tiles<kPiece * TileShape(TileKind(kK), kDim).bytes>(to, from, lane);
      else copy_tiles<kPiece * TileShape(TileKind(kV), kDim).bytes>(to, from, lane);
    }
    gpu::copy_commit();
  };
  const auto start_single = [&](int i, bool is_k) {
    if (i < share.n_singles) {
      const int t = share.first_single + i;
      const SideTiles& side = is_k ? k : v;
      const int coded = is_k ? units.k_coded : units.v_coded;
      copy_tile(is_k ? k_room : v_room, side.at(t, t == units.n_tiles, coded),
                TileShape(side.kind_of(t, t == units.n_tiles, coded), kDim).bytes, lane);
    }
    gpu::copy_commit();
  };

  const bool has_any = n_pieces > 0 || share.own_single < share.n_singles;
  const int last_started =
      n_pieces > 0 ? tile_of(min(kPlaces, n_pieces) - 1) + kPiece - 1 : share.first_single + share.own_single;
  const bool settled = has_any && units.is_settled(last_started, a.rows.most);
  if (!settled) gpu::wait_for_previous_grid();
  if (n_pieces > 0) {
    fetch_pages(0);
    // In the order in which they are waited for.
    start_piece(0, true), start_piece(kPieces - 1, kPieces == 2);
    start_piece(kPieces == 2 ? 0 : 1, kPieces == 1), start_piece(1, false);
  } else {
    start_single(share.own_single, true);
    start_single(share.own_single, false);
  }
  if (settled) gpu::wait_for_previous_grid();

  float x[kPer];
  const QueryForms forms = query_forms(a.k.kind, a.k.recent_kind, a.k.ring_tiles > 0, units.n_sinks > 0);
  for (int r = warp; r < kHeads; r += warps) {
    const float* const q = a.q + (int64_t(parts.of.row) * a.n_heads + first_head + r) * kDim + lane;
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = r < n_heads ? q[32 * j] * (a.scale * 1.44269504f) : 0.0f;
    put_query<kDim>(queries, r, x, forms, lane);
  }
  const RotorBytes levels;
  __syncthreads();

  State<kDim> state;
  float unit = 0;
  with_coded<kK>(k_kind, [&]<TileKind kKind>() { unit = score_unit<kKind>(queries, lane); });
  bool raises = true;
  // A step: kHere pieces from `piece` on.
  const auto take_pieces = [&]<int kHere>(int piece) {
    constexpr int kTiles = kHere * kPiece;
    const int place = kPieces == 2 ? 0 : piece % kPlaces;
    const std::byte *const k_tiles = k_room + place * kPiece * k_bytes, *const v_tiles =
                                                                            v_room + place * kPiece * v_bytes;
    float scores[kTiles][8], worth = 1;
    for (;;) {
#pragma unroll
      for (int i = 0; i < kHere; ++i) {
        if (i == 0) gpu::copy_wait<3>();
        else gpu::copy_wait<2>();
        __syncwarp();
        with_coded<kK>(k_kind, [&]<TileKind kKind>() {
          tile_scores<kKind, kDim, kPiece>(k_tiles + i * kPiece * k_bytes, queries, levels, lane, scores + i * kPiece);
        });
      }
      if (tile_of(piece) == 0) mask(units, 0, lane, scores[0]);
      if constexpr (kPiece == 1) {
        worth = state.template take_under_own_top<1>(scores, unit);
        break;
      }
      if (raises) state.template raise_top<kTiles>(scores, unit);
      raises = !state.template take<kTiles>(scores, unit);
      if (!raises) break;
    }
    __syncwarp();  // all lanes have read the places that are filled next
#pragma unroll
    for (int i = 0; i < kPieces; ++i) start_piece(piece + kPlaces + i, true);
    if constexpr (kPieces == 2) gpu::copy_wait<2>();
    else gpu::copy_wait<3>();
    __syncwarp();
    with_coded<kV>(v_kind, [&]<TileKind kKind>() {
      tile_values<kKind, kDim, kTiles>(v_tiles, levels, scores, worth, lane, state.out);
    });
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) start_piece(piece + i + kPlaces, false);
  };
#pragma unroll 1
  for (int piece = 0; piece < n_pieces; piece += kPieces) {
    fetch_pages(piece + kPlaces);
    if (kPieces == 1 || piece + 1 < n_pieces) take_pieces.template operator()<kPieces>(piece);
    else take_pieces.template operator()<1>(piece);
  }
  if (n_pieces > 0) start_single(share.own_single, true), start_single(share.own_single, false);
#pragma unroll 1
  for (int i = share.own_single; i < share.n_singles; i += warps) {
    const int t = share.first_single + i;
    const bool sinks = t == units.n_tiles;
    float scores[1][8];
    gpu::copy_wait<1>();
    __syncwarp();
    with_single<kK>(k.kind_of(t, sinks, units.k_coded), [&]<TileKind kKind>() {
      unit = score_unit<kKind>(queries, lane);
      tile_scores<kKind, kDim>(k_room, queries, levels, lane, scores);
    });
    mask(units, t, lane, scores[0]);
    const float worth = state.template take_under_own_top<1>(scores, unit);
    __syncwarp();
    start_single(i + warps, true);
    gpu::copy_wait<1>();
    __syncwarp();
    with_single<kV>(v.kind_of(t, sinks, units.v_coded), [&]<TileKind kKind>() {
      tile_values<kKind, kDim>(v_room, levels, scores, worth, lane, state.out);
    });
    __syncwarp();
    start_single(i + warps, false);
  }
  gpu::copy_wait<0>();
  __syncthreads();
  store_part<kDim>(state, {reinterpret_cast<float*>(room)}, warps, n_heads,
                   cut.parts + (int64_t(row) * cut.lists + list) * part_floats(kDim));
}

/// One of the kernels above, as the host sees it; k and v say nothing of the one for every pair.
struct SplitKernel {
  TileKind k, v;
  int most_warps, piece_tiles;
  void (*launch)(const gpu::Grid& grid, const DeviceAttention& a, const Cut& cut);
};

template <int kDim, int kK, int kV>
void launch_split(const gpu::Grid& grid, const DeviceAttention& a, const Cut& cut) {
  gpu::allow_shared_bytes("shared memory of attention", attn_split_kernel<kDim, kK, kV>, grid.shared_bytes);
  gpu::launch("attention over tiles", attn_split_kernel<kDim, kK, kV>, grid, a, cut);
}

template <int kDim, TileKind kK, TileKind kV>
constexpr SplitKernel split_kernel() {
  return {kK, kV, most_warps<kDim, int(kK), int(kV)>(), piece_tiles<kDim, int(kK), int(kV)>(),
          launch_split<kDim, int(kK), int(kV)>};
}
template <int kDim>
constexpr SplitKernel any_split_kernel() {
  return {{}, {}, most_warps<kDim, kAnyKind, kAnyKind>(), 1, launch_split<kDim, kAnyKind, kAnyKind>};
}

/// Kernels for rows of head_dim values: pairs that are worth a kernel of their own, then the one for all.
std::span<const SplitKernel> split_kernels_64();
std::span<const SplitKernel> split_kernels_128();
std::span<const SplitKernel> split_kernels_256();

}  // namespace ridge::tiles
