// Prompt attention by wgmma (gpu/warpgroup.h): sm_90a alone.
//
// A block has 128 queries. Four producer warps bring tiles of K and V as f16 to shared memory, in the order that
// wgmma reads; two consumer warpgroups have 64 queries each. Coded tiles that many blocks read are
// turned to f16 once, by a kernel in front; else the producers turn them. Queries and weights of V are A, in registers.
// K and V have rings of steps of their own: producers are up to kStages steps ahead.
//
// The order of keys. Row 8 u + i of a tile of K in shared memory is position 8 (i / 2) + 2 u + i % 2: the positions of
// unit u of a column of V (tile_order.h). So a lane's scores, two and two, are the weights that meet these columns.
#include "op/attn/wide_prefill.h"

#include <algorithm>

#ifdef __HIP__
#include "ridge/error.h"

namespace ridge {

void wide_prefill_attn(gpu::StreamHandle, const DeviceAttention&, const PrefillList&) {
  throw Error(ErrorKind::failure, "prefill attention: this device has no wgmma");
}

}  // namespace ridge
#else
#include "gpu/warpgroup.h"
#include "op/attn/prefill_parts.h"
#include "op/attn/prefill_tiles.h"
#include "op/attn/prefill_units.h"

namespace ridge {
namespace {

using prefill::kLog2E;
using prefill::PartRows;
using prefill::Queries;
using prefill::Sight;
using prefill::Unit;
using prefill::Units;
using tiles::kNever;
using tiles::quad_max;
using tiles::quad_sum;

constexpr int kTiles = 2, kKeys = kTiles * kTilePositions;  // of a step
constexpr int kProducers = 4 * 32, kConsumers = 2 * 128;    // threads
constexpr int kThreads = kProducers + kConsumers;
constexpr int kAlignment = 1024;                    // of stages
constexpr int kCentreGroup = 4, kCentreGroups = 3;  // of tiles: the step before's, this one's, the next
enum Barrier : int { kOfProducers = 1, kOfConsumers = 2 };

/// The work of producers with tiles: turn them to f16, copy tiles of f16 in units, or bring whole tiles that were
/// turned in front.
enum class Source : uint8_t { turn, copy, turned };

template <int kDim_, Source kSource_>
struct Shape {
  static constexpr int kDim = kDim_;
  static constexpr Source kSource = kSource_;
  static constexpr int kTileBytes = kTilePositions * 2 * kDim, kStageBytes = kTiles * kTileBytes;
  static constexpr int kStages = kSource == Source::turn ? 3 : 6, kRawStages = kSource == Source::turn ? 3 : 0;
  static constexpr int kUnderWay = 3;  // steps whose copies are under way, of f16
  static constexpr int kSideBytes = kStages * kStageBytes, kRawBytes = 2 * kTiles * kRawStages * kTileBytes;
  static_assert(2 * kStages * kStageBytes >= kWidePrefillQueries * kDim * 4, "outputs take their place");

  using Ring = gpu::Ring<kStages, kStageBytes>;  // steps of a side
  using Place = gpu::RingPlace<kStages>;
};

/// The tiles of steps in order.
class Walk {
 public:
  __device__ explicit Walk(const Units& units)
      : units_(units), coming_(units.first()), plain_end_(units.plain_end), end_(units.end_tile) {}
  /// The next step's; false where there is none.
  __device__ __forceinline__ bool take(Unit (&step)[kTiles]) {
    static_assert(kTiles == 2);
    const int next = coming_.bits >> 2;  // the tile behind
    is_plain_ = (coming_.bits & 3) == 3 && next > 0 && next + 1 < plain_end_;
    if (is_plain_) {
      step[0] = coming_;
      step[1] = {coming_.bits + 4};
      coming_ = {coming_.bits + 8};
      return true;
    }
    if (ended(coming_)) return false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      step[i] = coming_;
      if (!ended(coming_)) coming_ = units_.next(coming_);
    }
    return true;
  }
  /// Whether all tiles of the step are there, and coded.
  __device__ bool is_plain() const { return is_plain_; }
  __device__ bool ended(Unit u) const { return u.bits >> 2 > end_; }

 private:
  const Units& units_;
  Unit coming_;
  int plain_end_, end_;
  bool is_plain_ = false;
};

/// Shared state of a block's warps, behind the stages.
template <class S>
struct Shared {
  gpu::Arrival filled[2][S::kStages], used[2][S::kStages], come[2 * kTiles][std::max(1, S::kRawStages)];
  Units units;
  Sight sights[kWidePrefillQueries];
  uint4 centres[S::kSource == Source::turn ? kCentreGroup * kCentreGroups : 1][S::kDim / 8];
};

template <class S>
constexpr int kSharedBytes = 2 * S::kSideBytes + S::kRawBytes + int(sizeof(Shared<S>)) + kAlignment;

/// Where the units of a lane belong, of tile i of n: rows of 64 bytes, keys of K [32 channels][keys of n tiles],
/// channels of V [tile][channels]. Four groups are a quad.
template <int kDim, bool kIsK, int kOf = kTiles>
struct Places {
  static constexpr int kQuadBytes = (kIsK ? kOf : 1) * kTilePositions * 64;
  int offset[kIsK ? 4 : 1];

  __device__ __forceinline__ Places(int i, int lane) {
    const int r = lane / 4, unit = lane % 4;
    const int row = kIsK ? kTilePositions * i + 8 * (r / 2) + r % 2 : i * kDim + r;
#pragma unroll
    for (int t = 0; t < (kIsK ? 4 : 1); ++t) offset[t] = (row + 2 * t) * 64 + (unit ^ (kIsK ? t : r / 2)) * 16;
  }
  /// Place of group t of the quad that starts at `quad`.
  __device__ __forceinline__ uint8_t* at(uint8_t* quad, int t) const {
    return kIsK ? quad + offset[t] : quad + offset[0] + t * 512;
  }
};

/// Where the units of a span lie among its turned tiles of a side: the sinks, coded tiles from the first that is seen,
/// exact tiles from the first that some query sees exact.
struct TurnedPlaces {
  int first, n_tiles, first_exact;

  __device__ TurnedPlaces(const KvTiles& side, int n_past, int n, bool window) {
    first = window ? side.first_seen(n_past + 1) / kTilePositions : 0;
    n_tiles = (n_past + n + kTilePositions - 1) / kTilePositions;
    first_exact = min(n_tiles, max(first, prefill::coded_tiles(side.retention, n_past + 1)));
  }
  __device__ int of(bool sinks, bool coded, int tile) const {
    return sinks ? 0 : coded ? 1 + tile - first : 1 + n_tiles - first + tile - first_exact;
  }
};

/// Turns the tiles that a step's blocks read. Blocks: (four tiles of a span, kv head, span and side); a warp a tile.
template <int kDim>
__global__ void __launch_bounds__(4 * 32)
    turn_tiles_kernel(const DeviceAttention a, const AttnBlock* spans, std::byte* turned, int n_turned) {
  __shared__ uint4 centres[4][kDim / 8];
  const AttnBlock span = spans[blockIdx.z / 2];
  const bool is_k = blockIdx.z % 2 == 0;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, head = int(blockIdx.y);
  const int place = int(blockIdx.x) * 4 + warp;
  if (place >= span.n_turned) return;
  const StepRow of = a.rows.rows[span.first];
  const KvTiles& side = is_k ? a.k : a.v;
  const TurnedPlaces places(side, of.position, span.n, a.k.attention_window > 0);
  const int n_coded = places.n_tiles - places.first;
  const bool sinks = place == 0, coded = !sinks && place <= n_coded;
  const int tile = sinks ? 0 : coded ? places.first + place - 1 : places.first_exact + place - 1 - n_coded;
  const std::byte* from;
  if (sinks) {
    if (side.n_sinks == 0) return;
    from = side.sink_tile(of.slot, head);
  } else if (coded) {
    if (tile >= prefill::coded_tiles(side.retention, of.position + span.n)) return;
    from = side.coded_tile(a.rows.pages[int64_t(of.slot) * a.rows.page_pitch + tile / kPageTiles], head, tile);
  } else {
    if (side.ring_tiles == 0 || tile >= places.n_tiles) return;
    from = side.ring_tile(of.ring, head, tile);
  }
  const bool turns = is_k && a.k.turn.n_pairs > 0;
  if (turns) {
    prefill::TurnedCentre<kDim> centre(a.k.centre_of(of.slot, head), a.k.turn, a.k.rotation, lane);
    centre.load(tile);
    centre.put(centres[warp]);
    __syncwarp();
  }
  const int64_t at = (int64_t(is_k ? 0 : a.k.n_kv_heads) + head) * n_turned + span.turned + place;
  auto* const to = reinterpret_cast<uint8_t*>(turned) + at * (kTilePositions * 2 * kDim);
  prefill::turn_kind(sinks   ? TileKind::f16
                     : coded ? side.kind
                             : side.recent_kind,
                     [&](auto kind) {
                       const auto turn = [&](auto of_k) {
                         constexpr bool kIsK = decltype(of_k)::value;
                         using Tile = Places<kDim, kIsK, 1>;
                         const Tile units(0, lane);
                         prefill::TileTurn<decltype(kind)::value, kDim, kIsK> turned_tile(from, lane, 0);
#pragma unroll
                         for (int quad = 0; quad < kDim / 32; ++quad)
                           turned_tile.quad(quad, turns ? centres[warp] : nullptr,
                                            [&](int t) { return units.at(to + quad * Tile::kQuadBytes, t); });
                       };
                       if (is_k) turn(std::true_type());
                       else turn(std::false_type());
                     });
}

/// A producer warp of one side: tile i of every step.
template <class S, bool kIsK>
struct Producer {
  const DeviceAttention& a;
  const int32_t* pages;
  StepRow of;
  int head;
  Shared<S>& shared;
  typename S::Ring ring;
  int i, lane;
  int page_at = -1, page = 0, next_page = 0;  // of the last tile, and behind

  /// Brings whole tiles: of `turned` the side's and kv head's of the span.
  __device__ void bring(const uint8_t* turned, const TurnedPlaces& places) {
    constexpr int kQuads = S::kDim / 32, kQuadBytes = kTilePositions * 64;
    Walk walk(shared.units);
    Unit step[kTiles];
    typename S::Place place;
    while (walk.take(step)) {
      gpu::wait_until_used(ring, place);
      gpu::Arrival* const filled = ring.filled + place.stage;
      if (lane == 0) gpu::expect_pieces(filled, S::kStageBytes);
      __syncwarp();
      const int tile = kIsK ? lane / kQuads : lane, quad = kIsK ? lane % kQuads : 0;
      if (tile < kTiles) {
        const Unit u = tile == 0 || walk.ended(step[1]) ? step[0] : step[1];
        const uint8_t* const from =
            turned + int64_t(places.of(u.sinks() && tiles().n_sinks > 0, coded(u), u.tile())) * S::kTileBytes;
        if (kIsK)
          gpu::add_piece(filled, ring.at(place.stage) + (quad * kTiles + tile) * kQuadBytes, from + quad * kQuadBytes,
                         kQuadBytes);
        else gpu::add_piece(filled, ring.at(place.stage) + tile * S::kTileBytes, from, S::kTileBytes);
      }
      place.advance();
    }
  }

  /// Copies tiles of f16.
  __device__ void copy() {
    const Places<S::kDim, kIsK> places(i, lane);
    Walk walk(shared.units);
    Unit step[kTiles];
    typename S::Place place, filled;
    int under_way = 0;
    while (walk.take(step)) {
      const std::byte* const tile = coded_tile(own(walk, step).tile()) + lane * 16;
      gpu::wait_until_used(ring, place);
      uint8_t* const stage = ring.at(place.stage);
      place.advance();
#pragma unroll
      for (int group = 0; group < S::kDim / 8; ++group)
        gpu::copy_async16(places.at(stage + group / 4 * places.kQuadBytes, group % 4), tile + group * 512);
      gpu::copy_commit();
      if (++under_way <= S::kUnderWay) continue;
      --under_way;
      gpu::copy_wait<S::kUnderWay>();
      say_filled(filled);
    }
    gpu::copy_wait<0>();
    for (; under_way > 0; --under_way) say_filled(filled);
  }

  /// Turns tiles of any kind; `raw` [kRawStages] is the warp's own. Where K turns, a warp makes one centre of a group.
  /// When a step's last tile is the first of a group, the next group takes the place of the one that no step needs any
  /// more.
  __device__ void turn(std::byte* raw) {
    const Places<S::kDim, kIsK> places(i, lane);
    const Units& units = shared.units;
    const int warp = i + (kIsK ? 0 : kTiles);
    gpu::Arrival* const come = shared.come[warp];
    Walk starting(units), walk(units);
    Unit step[kTiles];
    gpu::RingPlace<S::kRawStages> start_place, raw_place;
    const auto start = [&] {
      if (!starting.take(step)) return;
      const std::byte* from;
      int64_t bytes = tiles().tile_bytes;
      if (starting.is_plain()) {
        from = coded_tile(step_of(step).tile());
      } else {
        const Unit u = own(starting, step);
        from = tile_of(u);
        bytes = prefill::bytes_of(tiles(), u, coded(u));
      }
      gpu::start_piece(come + start_place.stage, raw + start_place.stage * S::kTileBytes, from, int(bytes), lane);
      start_place.advance();
    };
#pragma unroll 1
    for (int n = 0; n < S::kRawStages; ++n) start();

    const bool turns = a.k.turn.n_pairs > 0;
    const int end_tile = units.end_tile;
    prefill::TurnedCentre<S::kDim> centre(turns ? a.k.centre_of(of.slot, head) : nullptr, a.k.turn, a.k.rotation, lane);
    int group = units.first_tile / kCentreGroup - 1;
    const auto load_centre = [&](int of_group) { centre.load(min(of_group * kCentreGroup + warp, end_tile - 1)); };
    const auto put_centre = [&](int of_group) {
      centre.put(shared.centres[of_group % kCentreGroups * kCentreGroup + warp]);
      load_centre(of_group + 1);
    };
    if (turns) {
      load_centre(group + 1);
      put_centre(group + 1);
    }
    typename S::Place place;
    while (walk.take(step)) {
      const Unit u = walk.is_plain() ? step_of(step) : own(walk, step);
      if (turns) {
        const Unit last = walk.is_plain() || !walk.ended(step[1]) ? step[1] : step[0];
        while (group < last.tile() / kCentreGroup) {
          gpu::sync_threads(kOfProducers, kProducers);
          put_centre(++group + 1);
        }
      }
      const std::byte* const tile = raw + raw_place.stage * S::kTileBytes;
      const uint4* const of_tile = kIsK && turns ? shared.centres[u.tile() % (kCentreGroup * kCentreGroups)] : nullptr;
      gpu::wait_until_used(ring, place);
      gpu::wait_for_piece(come + raw_place.stage, raw_place.round & 1);
      prefill::turn_kind(walk.is_plain() ? tiles().kind : prefill::kind_of(tiles(), u, coded(u)), [&](auto kind) {
        prefill::TileTurn<decltype(kind)::value, S::kDim, kIsK> turn(tile, lane, threadIdx.y);
        uint8_t* to = ring.at(place.stage);
#pragma unroll 1
        for (int quad = 0; quad < S::kDim / 32; ++quad, to += places.kQuadBytes)
          turn.quad(quad, of_tile, [&](int t) { return places.at(to, t); });
      });
      say_filled(place);
      raw_place.advance();
      start();
    }
  }

  __device__ Unit step_of(const Unit (&step)[kTiles]) const { return i == 0 ? step[0] : step[1]; }
  __device__ const KvTiles& tiles() const { return kIsK ? a.k : a.v; }
  __device__ static bool coded(Unit u) { return kIsK ? u.k_coded() : u.v_coded(); }
  /// Past the last tile the step's first comes once more, unseen: masked values must be finite, too.
  __device__ Unit own(const Walk& walk, const Unit (&step)[kTiles]) const {
    return i == 0 || walk.ended(step[1]) ? step[0] : step[1];
  }
  /// Pages are asked for ahead.
  __device__ __forceinline__ const std::byte* coded_tile(int tile) {
    const int at = tile / kPageTiles;
    if (at != page_at) {
      page = at == page_at + 1 && page_at >= 0 ? next_page : pages[at];
      page_at = at;
      next_page = pages[min(at + 1, (shared.units.end_tile - 1) / kPageTiles)];
    }
    return tiles().coded_tile(page, head, tile);
  }
  __device__ const std::byte* tile_of(Unit u) {
    if (prefill::reads_sinks(tiles(), u)) return tiles().sink_tile(of.slot, head);
    return coded(u) ? coded_tile(u.tile()) : tiles().ring_tile(of.ring, head, u.tile());
  }
  __device__ void say_filled(typename S::Place& place) const {
    gpu::publish_shared();
    __syncwarp();
    if (lane == 0) gpu::arrive(ring.filled + place.stage);
    place.advance();
  }
};

/// What lane 4 r + c of a consumer warp has: of the warp's queries r + 8 h scores [key / 8][2 h + p], of keys 8 .. + 2
/// c + p in the order of rows, and outputs [channel / 8][2 h + p] likewise.
template <class S>
struct Consumer {
  static constexpr int kDim = S::kDim;
  float top[2], total[2];
  float out[kDim / 8][4];
  float scores[kKeys / 8][4];
  uint32_t queries[kDim / 16][4], weights[kKeys / 16][4];

  /// Queries times `factor`, as A of 16 channels each.
  __device__ void load_queries(const DeviceAttention& a, const StepRow* span, int first_head, const Queries& of,
                               int lane) {
    const float factor = a.scale * kLog2E;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = of.at(lane / 4 + 8 * h), token = at / of.group;
      const float* const row =
          a.q + (int64_t(span[token].row) * a.n_heads + first_head + at - token * of.group) * kDim + lane % 4 * 2;
#pragma unroll
      for (int s = 0; s < kDim / 16; ++s)
#pragma unroll
        for (int k8 = 0; k8 < 2; ++k8) {
          const float2 two = *reinterpret_cast<const float2*>(row + 16 * s + 8 * k8);
          queries[s][2 * k8 + h] = gpu::pack_f16(two.x * factor, two.y * factor);
        }
    }
#pragma unroll
    for (int s = 0; s < kDim / 16; ++s) gpu::keep_words(queries[s]);
  }
  __device__ __forceinline__ void start_scores(const uint8_t* keys) {
    const uint64_t columns = gpu::shared_short_columns(keys);
    gpu::warpgroup_fence();
    gpu::warpgroup_mma_f16<false>(scores, queries[0], columns);
#pragma unroll
    for (int s = 1; s < kDim / 16; ++s)
      gpu::warpgroup_mma_f16(scores, queries[s], gpu::columns_behind(columns, s / 2 * (kKeys * 64) + s % 2 * 32));
    gpu::warpgroup_commit();
  }
  __device__ __forceinline__ void start_outputs(const uint8_t* values) {
    const uint64_t columns = gpu::shared_short_columns(values);
    gpu::warpgroup_fence();
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s)
      gpu::warpgroup_mma_f16(out, weights[s], gpu::columns_behind(columns, s / 2 * (kDim * 64) + s % 2 * 32));
    gpu::warpgroup_commit();
  }
  /// Scores of what a query does not see, or not in this unit, become -infinity.
  template <bool kWindow>
  __device__ void mask(const Units& units, const Unit (&step)[kTiles], const Sight* sights, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Sight sight = sights[lane / 4 + 8 * h];
#pragma unroll
      for (int u = 0; u < kTiles; ++u) {
        const prefill::Seen seen = prefill::seen_of<kWindow>(units, step[u], sight);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int key = 8 * (lane % 4) + i;
          if (key < seen.begin || key >= seen.end) scores[4 * u + i / 2][2 * h + i % 2] = -INFINITY;
        }
      }
    }
  }
  /// Scores become weights under the largest score so far. The outputs must be multiplied by `shrink`; false where it
  /// is 1 in all lanes.
  __device__ __forceinline__ bool weigh(float (&shrink)[2]) {
    bool rose = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float two[2] = {top[h], scores[0][2 * h]};  // two chains
#pragma unroll
      for (int i = 1; i < kKeys / 4; ++i) two[i % 2] = fmaxf(two[i % 2], scores[i / 2][2 * h + i % 2]);
      float now = fmaxf(two[0], two[1]);
      now = quad_max(now);
      shrink[h] = gpu::fast_exp2(top[h] - now);
      rose = rose || top[h] != now;
      top[h] = now;
      float sum[2] = {};
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        float& score = scores[i / 2][2 * h + i % 2];
        score = gpu::fast_exp2(score - now);
        sum[i % 2] += score;
      }
      total[h] = fmaf(total[h], shrink[h], sum[0] + sum[1]);
    }
    return __any_sync(gpu::kAllLanes, rose);
  }
  /// Weights as A, once no wgmma reads the last ones.
  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&of)[4] = scores[2 * s + i / 2];
        weights[s][i] = gpu::pack_f16(of[2 * (i % 2)], of[2 * (i % 2) + 1]);
      }
      gpu::keep_words(weights[s]);
    }
  }
};

/// Outputs of a warp's queries, once both warpgroups have read the last stage: `floats` [kWidePrefillQueries, kDim]
/// takes the stages' place. Of a block with parts they go to `parts`, not yet divided.
template <class S>
__device__ void store(const Consumer<S>& m, const DeviceAttention& a, const AttnBlock& block, const PartRows& parts,
                      const StepRow* span, const Queries& queries, int kv_head, int lane, float* floats) {
  constexpr int kDim = S::kDim, kPer = kDim / 32;
  const int r = lane / 4, c = lane % 4, n = min(16, queries.n - queries.first);
  if (block.n_parts > 1) {
    const int first = block.place + queries.first - block.first_query;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = quad_sum(m.total[h]);
      if (r + 8 * h >= n) continue;
      const int64_t row = int64_t(first + r + 8 * h) * a.k.n_kv_heads + kv_head;
#pragma unroll
      for (int e = 0; e < kDim / 8; ++e)
        *reinterpret_cast<float2*>(parts.out + row * kDim + 8 * e + 2 * c) =
            make_float2(m.out[e][2 * h], m.out[e][2 * h + 1]);
      if (c == 0) parts.state[row] = make_float2(m.top[h], total);
    }
    return;
  }
  gpu::sync_threads(kOfConsumers, kConsumers);
  float* const own = floats + (queries.first - block.first_query) * kDim;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float inverse = 1.0f / quad_sum(m.total[h]);
#pragma unroll
    for (int e = 0; e < kDim / 8; ++e)
      *reinterpret_cast<float2*>(own + (r + 8 * h) * kDim + 8 * e + 2 * c) =
          make_float2(m.out[e][2 * h] * inverse, m.out[e][2 * h + 1] * inverse);
  }
  __syncwarp();
  const RotationRow<kPer> table(a.v.rotation, lane);
  for (int i = 0; i < n; ++i) {
    float x[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = own[i * kDim + lane + 32 * j];
    prefill::store_row(a, span, kv_head, queries, i, table, lane, x);
  }
}

/// Blocks: (block of the list, kv head). kSpecial: an attention window or sink logits.
template <class S, bool kSpecial>
__global__ void __launch_bounds__(kThreads, 1)
    wide_prefill_kernel(const DeviceAttention a, const AttnBlock* blocks, const PartRows parts, const std::byte* turned,
                        int n_turned) {
  if constexpr (gpu::kWarpgroups) {
    auto* const dynamic = gpu::dynamic_shared<uint8_t>();
    uint8_t* const stages = dynamic + (kAlignment - reinterpret_cast<uintptr_t>(dynamic) % kAlignment) % kAlignment;
    uint8_t* const raw = stages + 2 * S::kSideBytes;
    auto& shared = *reinterpret_cast<Shared<S>*>(raw + S::kRawBytes);
    const typename S::Ring keys{stages, shared.filled[0], shared.used[0]},
        values{stages + S::kSideBytes, shared.filled[1], shared.used[1]};

    const AttnBlock block = blocks[blockIdx.x];
    const StepRow* const span = a.rows.rows + block.first;
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, kv_head = int(blockIdx.y);
    const int group = a.group(), n_queries = block.n * group, n_past = span[0].position;
    const auto seen_by = [&](int query) { return n_past + min(query, n_queries - 1) / group + 1; };
    if (threadIdx.x == 0)
      shared.units.set(a, seen_by(block.first_query), seen_by(block.first_query + kWidePrefillQueries - 1), block.part,
                       block.n_parts, kSpecial);
    if (int(threadIdx.x) < kWidePrefillQueries) {
      const int n = seen_by(block.first_query + int(threadIdx.x));
      shared.sights[threadIdx.x] = {n, prefill::coded_tiles(a.k.retention, n), prefill::coded_tiles(a.v.retention, n),
                                    kSpecial ? a.k.first_seen(n) : 0};
    }
    if (warp == kConsumers / 32) {
      for (const typename S::Ring* ring : {&keys, &values}) {
        gpu::set_up_counts(ring->filled, S::kStages, S::kSource == Source::turned ? 1 : kTiles, lane);
        gpu::set_up_counts(ring->used, S::kStages, kConsumers / 32, lane);
      }
      gpu::set_up_arrivals(shared.come[0], 2 * kTiles * S::kRawStages, lane);
    }
    __syncthreads();

    if (warp >= kConsumers / 32) {
      gpu::give_registers<120>();
      const int own = warp - kConsumers / 32;
      const int32_t* const pages = a.rows.pages + int64_t(span[0].slot) * a.rows.page_pitch;
      const auto produce = [&](auto producer) {
        if constexpr (S::kSource == Source::copy) {
          producer.copy();
        } else if constexpr (S::kSource == Source::turn) {
          producer.turn(reinterpret_cast<std::byte*>(raw + own * S::kRawStages * S::kTileBytes));
        } else if (producer.i == 0) {  // a warp a side
          const int64_t first = (int64_t(own < kTiles ? 0 : a.k.n_kv_heads) + kv_head) * n_turned + block.turned;
          producer.bring(reinterpret_cast<const uint8_t*>(turned) + first * S::kTileBytes,
                         TurnedPlaces(producer.tiles(), n_past, block.n, kSpecial && a.k.attention_window > 0));
        }
      };
      if (own < kTiles) produce(Producer<S, true>{a, pages, span[0], kv_head, shared, keys, own, lane});
      else produce(Producer<S, false>{a, pages, span[0], kv_head, shared, values, own - kTiles, lane});
      return;
    }

    gpu::take_registers<192>();
    const Queries queries{block.first_query + warp * 16, n_queries, group};
    Consumer<S> m;
    m.load_queries(a, span, kv_head * group, queries, lane);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      m.top[h] = kNever, m.total[h] = 0;
      if (!kSpecial || !a.sink_logits || block.part > 0) continue;  // a sink is a key in front, without a value
      m.top[h] = a.sink_logits[kv_head * group + queries.at(lane / 4 + 8 * h) % group] * kLog2E;
      m.total[h] = lane % 4 == 0 ? 1.0f : 0.0f;
    }
#pragma unroll
    for (int e = 0; e < S::kDim / 8; ++e)
#pragma unroll
      for (int i = 0; i < 4; ++i) m.out[e][i] = 0;

    const Units& units = shared.units;
    Walk walk(units);
    Unit of[kTiles];
    typename S::Place key_place, value_place;
    const auto release = [&](const typename S::Ring& ring, typename S::Place& place) {
      __syncwarp();
      if (lane == 0) gpu::arrive(ring.used + place.stage);
      place.advance();
    };
    const auto start_scores = [&] {
      gpu::wait_until_filled(keys, key_place);
      m.start_scores(keys.at(key_place.stage));
    };
    const auto start_outputs = [&] {
      gpu::wait_until_filled(values, value_place);
      m.start_outputs(values.at(value_place.stage));
    };
    const int full_begin = units.full_begin, full_end = units.full_end;
    float shrink[2];
    const auto weigh = [&] {
      gpu::keep_sums(m.scores);
      release(keys, key_place);
      if (of[0].bits >> 2 <= full_begin || of[kTiles - 1].bits >> 2 > full_end)
        m.template mask<kSpecial>(units, of, shared.sights + warp * 16, lane);
      return m.weigh(shrink);
    };
    if (walk.take(of)) {
      start_scores();
      gpu::warpgroup_wait<0>();
      weigh();  // no outputs yet
      m.pack_weights();
#pragma unroll 1
      while (walk.take(of)) {
        start_scores();
        start_outputs();
        gpu::warpgroup_wait<1>();
        const bool rose = weigh();
        gpu::wait_behind(m.total[0] + m.total[1]);  // of the weights: they are made beside the outputs under way
        gpu::warpgroup_wait<0>();
        gpu::keep_sums(m.out);
        release(values, value_place);
        m.pack_weights();
        if (rose)
#pragma unroll
          for (int e = 0; e < S::kDim / 8; ++e)
#pragma unroll
            for (int i = 0; i < 4; ++i) m.out[e][i] *= shrink[i / 2];
      }
      start_outputs();
      gpu::warpgroup_wait<0>();
      gpu::keep_sums(m.out);
    }
    store(m, a, block, parts, span, queries, kv_head, lane, reinterpret_cast<float*>(stages));
  }
}

template <int kDim>
void launch(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list) {
  const auto start = [&](auto kernel, int shared_bytes) {
    const dim3 blocks(unsigned(list.n), unsigned(a.k.n_kv_heads));
    gpu::allow_shared_bytes("wide prefill attention", kernel, shared_bytes);
    gpu::launch("wide prefill attention", kernel, {blocks, kThreads, size_t(shared_bytes), stream}, a, list.blocks,
                prefill::part_rows(a, list), list.turned, list.n_turned);
  };
  const bool special = a.k.attention_window > 0 || a.sink_logits;
  using Turn = Shape<kDim, Source::turn>;
  using Copy = Shape<kDim, Source::copy>;
  using Turned = Shape<kDim, Source::turned>;
  if (list.n_turned > 0) {
    gpu::launch("turn of tiles", turn_tiles_kernel<kDim>,
                {dim3(unsigned(gpu::ceil_div(list.n_turned, 4)), unsigned(a.k.n_kv_heads), unsigned(2 * list.n_spans)),
                 4 * 32, 0, stream},
                a, list.spans, list.turned, list.n_turned);
    if (special) start(wide_prefill_kernel<Turned, true>, kSharedBytes<Turned>);
    else start(wide_prefill_kernel<Turned, false>, kSharedBytes<Turned>);
  } else if (special) {
    start(wide_prefill_kernel<Turn, true>, kSharedBytes<Turn>);
  } else if (prefill::comes_as_f16(a)) {
    start(wide_prefill_kernel<Copy, false>, kSharedBytes<Copy>);
  } else {
    start(wide_prefill_kernel<Turn, false>, kSharedBytes<Turn>);
  }
}

}  // namespace

void wide_prefill_attn(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list) {
  if (a.k.head_dim == 64) launch<64>(stream, a, list);
  else launch<128>(stream, a, list);
}

}  // namespace ridge
#endif
