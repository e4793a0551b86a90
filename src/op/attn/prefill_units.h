// The units that a block of prompt attention walks over: the sinks and the tiles that its queries see, each as coded or
// as exact on either side, and the positions of a unit that a query sees. Device code.
#pragma once

#include "op/attn/attn_cuda.h"

namespace ridge::prefill {

/// A tile of positions from one source a side. The sinks are a unit of their own, in front.
struct Unit {
  int bits = 0;  // tile + 1, or 0 for the sinks; then whether V and K are coded: registers are scarce

  __device__ bool sinks() const { return bits < 4; }
  __device__ int tile() const { return max(0, (bits >> 2) - 1); }
  __device__ bool k_coded() const { return bits & 1; }
  __device__ bool v_coded() const { return bits & 2; }
  __device__ Unit after() const { return {bits + 1}; }
};

/// Scores are in powers of two.
inline constexpr float kLog2E = 1.44269504f;

/// The tile that a unit reads of a side: the sinks' own tile where the side has sinks, else a coded or an exact tile.
__device__ __forceinline__ bool reads_sinks(const KvTiles& side, Unit u) { return u.sinks() && side.n_sinks > 0; }
__device__ __forceinline__ TileKind kind_of(const KvTiles& side, Unit u, bool coded) {
  return reads_sinks(side, u) ? TileKind::f16 : coded ? side.kind : side.recent_kind;
}
__device__ __forceinline__ int64_t bytes_of(const KvTiles& side, Unit u, bool coded) {
  return reads_sinks(side, u) ? side.sink_bytes : coded ? side.tile_bytes : side.ring_tile_bytes;
}

/// Tiles that a query which sees n positions sees coded.
__device__ __forceinline__ int coded_tiles(const KvRetention& r, int n) {
  return (r.coded_end(n) + kTilePositions - 1) / kTilePositions;
}

/// The units of a block in order: the sinks, and tiles [first_tile, end_tile). In shared memory: registers are scarce.
struct Units {
  int first_tile, end_tile, n_sinks;
  int plain_end;             // tiles before it are coded for every query, K and V: one unit each
  int full_begin, full_end;  // every query sees all of these tiles
  bool k_sinks, v_sinks;     // sides that have sinks
  // By the low bits of a unit: whether some query sees the sinks so, and tiles [begin, end).
  bool sinks[4];
  int begin[4], end[4];

  /// For queries that see first_n to last_n positions.
  __device__ void set(const DeviceAttention& a, int first_n, int last_n, int part, int n_parts, bool window) {
    const int n_tiles = (last_n + kTilePositions - 1) / kTilePositions;
    const int seen = window ? a.k.first_seen(first_n) / kTilePositions : 0;  // tiles before are not read
    first_tile = seen + int(int64_t(n_tiles - seen) * part / n_parts);
    end_tile = seen + int(int64_t(n_tiles - seen) * (part + 1) / n_parts);
    n_sinks = min(last_n, max(a.k.n_sinks, a.v.n_sinks));
    k_sinks = a.k.n_sinks > 0;
    v_sinks = a.v.n_sinks > 0;
    // Tiles below the first number are coded for all of the queries, those from the second on for none.
    const KvRetention &k = a.k.retention, &v = a.v.retention;
    const int k_coded[2] = {coded_tiles(k, first_n), coded_tiles(k, last_n)};
    const int v_coded[2] = {coded_tiles(v, first_n), coded_tiles(v, last_n)};
    plain_end = min(end_tile, min(k_coded[0], v_coded[0]));
    full_begin = !window ? n_sinks > 0
                         : max(n_sinks > 0 ? 1 : 0, (a.k.first_seen(last_n) + kTilePositions - 1) / kTilePositions);
    full_end = min(plain_end, first_n / kTilePositions);
    const bool alike = k.window == v.window && k.tile == v.tile && k.calibration == v.calibration;
    for (int i = 0; i < 4; ++i) {
      const Unit u{i};
      begin[i] = max(u.k_coded() ? 0 : k_coded[0], u.v_coded() ? 0 : v_coded[0]);
      end[i] = min(u.k_coded() ? k_coded[1] : n_tiles, u.v_coded() ? v_coded[1] : n_tiles);
      if ((!u.k_coded() && a.k.ring_tiles == 0) || (!u.v_coded() && a.v.ring_tiles == 0) ||
          (alike && u.k_coded() != u.v_coded()))
        end[i] = 0;
      // A side without sinks has these positions in tile 0.
      const bool k_read = k_sinks ? !u.k_coded() : u.k_coded() ? k_coded[1] > 0 : a.k.ring_tiles > 0 && k_coded[0] == 0;
      const bool v_read = v_sinks ? !u.v_coded() : u.v_coded() ? v_coded[1] > 0 : a.v.ring_tiles > 0 && v_coded[0] == 0;
      sinks[i] = n_sinks > 0 && k_read && v_read;
    }
  }

  __device__ bool ended(Unit u) const { return u.bits >> 2 > end_tile; }
  __device__ bool is_read(Unit u) const {
    const int i = u.bits & 3;
    return u.sinks() ? sinks[i] : u.tile() >= begin[i] && u.tile() < end[i];
  }
  __device__ Unit from(Unit u) const {
#pragma unroll 1
    while (!ended(u) && !is_read(u)) u = u.after();
    return u;
  }
  __device__ Unit first() const { return from({first_tile == 0 ? 0 : (first_tile + 1) << 2}); }
  __device__ Unit next(Unit u) const {
    const int tile = u.bits >> 2;  // the next
    return tile > 0 && tile < plain_end ? Unit{(tile + 1) << 2 | 3} : from(u.after());
  }
  /// Whether every query sees all of the units from `u` to `last`.
  __device__ bool all_seen(Unit u, Unit last) const { return u.bits >> 2 > full_begin && last.bits >> 2 <= full_end; }
};

/// Positions [first, n) that a query sees, and the tiles of them that are coded.
struct alignas(16) Sight {
  int n, k_coded, v_coded, first;
};
/// Positions [begin, end) of a unit are what a query sees there.
struct Seen {
  int begin, end;
};
template <bool kWindow>
__device__ __forceinline__ Seen seen_of(const Units& units, Unit u, const Sight& sight) {
  const int tile = u.tile();
  const bool k_there = (u.sinks() && units.k_sinks) || (tile < sight.k_coded) == u.k_coded();
  const bool v_there = (u.sinks() && units.v_sinks) || (tile < sight.v_coded) == u.v_coded();
  if (!k_there || !v_there || units.ended(u)) return {0, 0};
  if (u.sinks()) return {kWindow ? sight.first : 0, min(units.n_sinks, sight.n)};
  const int begin = tile == 0 ? units.n_sinks : 0;
  return {kWindow ? max(begin, sight.first - tile * kTilePositions) : begin, sight.n - tile * kTilePositions};
}

}  // namespace ridge::prefill
