#include <algorithm>

#include "op/attn/prefill_parts.h"
#include "op/attn/prefill_tiles.h"
#include "op/attn/prefill_units.h"
#include "op/attn/wide_prefill.h"
#include "ridge/error.h"

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

/// How the work is cut. A warp has kFragments x 16 queries: every fragment of K and V it loads meets kFragments
/// mmas, and shared memory could not feed the tensor cores with one. Eight warps share what turning a tile to
/// f16 costs, where the device's shared memory holds their queries and four stages; else four warps and two stages.
/// Where it does not hold these, two warps turn tiles to f16 as they read them from device memory, and there is one
/// stage.
template <int kDim_, int kWarps_>
struct Cut {
  static constexpr int kDim = kDim_, kWarps = kWarps_, kThreads = 32 * kWarps;
  static constexpr bool kDirect = kWarps == 2;
  static constexpr int kFragments = kDim == 256 ? 1 : 2;  // outputs of 16 x 256 fill the registers
  static constexpr int kTiles = kDim == 256 ? 1 : 2;      // of positions a step
  static constexpr int kKeys = kTiles * kTilePositions;
  static constexpr int kWarpQueries = 16 * kFragments, kQueries = kWarpQueries * kWarps;
  static constexpr int kBlocks = 8 / kWarps;  // on a multiprocessor: registers have room for no more

  static constexpr int kTileBytes = kTilePositions * 2 * kDim;  // of f16
  static constexpr int kSides = 2 * kTiles;                     // tiles of a step: of K, then of V
  static constexpr int kStageBytes = kSides * kTileBytes;
  static constexpr int kStages = kWarps / 2;  // of a direct one: f16
  /// Centres of K's tiles, as f16: of the group of tiles that the block is at and of the next, or of a step.
  static constexpr int kCentreGroup = 8, kCentres = kStages > 2 ? 2 * kCentreGroup : kTiles;
  static constexpr int kQueryBytes = kQueries * 2 * kDim;
  static constexpr int kSharedBytes = std::max(kQueryBytes + kStages * kStageBytes, kQueries* kDim * 4);
};

/// A side of the block's kv head.
struct Side {
  const KvTiles& tiles;
  const int32_t* pages;
  StepRow of;
  int head;

  /// The unit's tile.
  __device__ const std::byte* tile(Unit u, bool coded) const {
    if (prefill::reads_sinks(tiles, u)) return tiles.sink_tile(of.slot, head);
    return coded ? tiles.coded_tile(pages[u.tile() / kPageTiles], head, u.tile())
                 : tiles.ring_tile(of.ring, head, u.tile());
  }
  /// Starts to bring it.
  __device__ void start(Unit u, bool coded, gpu::Arrival* arrival, std::byte* to, int lane) const {
    gpu::start_piece(arrival, to, tile(u, coded), int(prefill::bytes_of(tiles, u, coded)), lane);
  }
};

/// Not inlined: what it needs would take registers of the loop that calls it now and then.
template <int kDim>
__device__ __noinline__ void put_centre(const float* centre, const CentreTurn turn, const RotationView rotation,
                                        int tile, int lane, uint4* to) {
  prefill::TurnedCentre<kDim> turned(centre, turn, rotation, lane);
  turned.load(tile);
  turned.put(to);
}

/// Lane 4 r + c has queries 16 t + r + 8 h of the warp: state [t][h], scores [t][key / 8][2 h + p] of keys 8 .. + 2c +
/// p, outputs [t][channel / 8][2 h + p] likewise.
template <class C>
struct WarpState {
  float top[C::kFragments][2], total[C::kFragments][2];
  float out[C::kFragments][C::kDim / 8][4];
};

/// The warp's queries, times `factor`, as A operands of this lane: [t][step of 16 channels][lane][16 bytes]. Step 2 q +
/// h has channels 32 q + 8 c + 4 h .. + 3 of the lane's column c, as tiles have them.
template <class C>
__device__ void put_queries(std::byte* to, const DeviceAttention& a, const StepRow* span, int first_head,
                            const Queries& queries, float factor, int lane) {
  const int r = lane / 4, c = lane % 4;
#pragma unroll 1
  for (int t = 0; t < C::kFragments; ++t) {
    const float* row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = queries.at(16 * t + r + 8 * h), token = at / queries.group;
      row[h] = a.q + (int64_t(span[token].row) * a.n_heads + first_head + at - token * queries.group) * C::kDim + 8 * c;
    }
#pragma unroll
    for (int s = 0; s < C::kDim / 16; ++s) {
      float4 x[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) x[h] = *reinterpret_cast<const float4*>(row[h] + 32 * (s / 2) + 4 * (s % 2));
      *reinterpret_cast<uint4*>(to + ((t * (C::kDim / 16) + s) * 32 + lane) * 16) =
          make_uint4(gpu::pack_f16(x[0].x * factor, x[0].y * factor), gpu::pack_f16(x[1].x * factor, x[1].y * factor),
                     gpu::pack_f16(x[0].z * factor, x[0].w * factor), gpu::pack_f16(x[1].z * factor, x[1].w * factor));
    }
  }
}

__device__ __forceinline__ void load_words(const std::byte* from, uint32_t (&words)[4]) {
  const uint4 loaded = *reinterpret_cast<const uint4*>(from);
  words[0] = loaded.x, words[1] = loaded.y, words[2] = loaded.z, words[3] = loaded.w;
}

/// Scores of a step, in powers of two.
template <class C>
__device__ __forceinline__ void scores_of(const std::byte* queries, const std::byte* keys, int lane,
                                          float (&scores)[C::kFragments][C::kKeys / 8][4]) {
  constexpr int kSteps = C::kDim / 16;
#pragma unroll
  for (int t = 0; t < C::kFragments; ++t)
#pragma unroll
    for (int n = 0; n < C::kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][n][i] = 0;
#pragma unroll
  for (int q = 0; q < C::kDim / 32; ++q) {
    uint32_t a[2][C::kFragments][4];
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int t = 0; t < C::kFragments; ++t)
        load_words(queries + ((t * kSteps + 2 * q + h) * 32 + lane) * 16, a[h][t]);
#pragma unroll
    for (int n = 0; n < C::kKeys / 8; n += 2) {  // two at a time: sums that wait for each other are further apart
      uint32_t b[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        load_words(keys + n / 4 * C::kTileBytes + ((4 * q + n % 4 + i) * 32 + lane) * 16, b[i]);
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int t = 0; t < C::kFragments; ++t) gpu::mma_f16(scores[t][n + i], a[h][t], b[i][2 * h], b[i][2 * h + 1]);
    }
  }
}

/// Scores of what a query does not see, or not in this unit, become -infinity.
template <class C, bool kWindow>
__device__ void mask(const Units& units, const Unit (&step)[C::kTiles], const Sight* sights, int lane,
                     float (&scores)[C::kFragments][C::kKeys / 8][4]) {
#pragma unroll
  for (int t = 0; t < C::kFragments; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Sight sight = sights[16 * t + lane / 4 + 8 * h];
#pragma unroll
      for (int u = 0; u < C::kTiles; ++u) {
        const prefill::Seen seen = prefill::seen_of<kWindow>(units, step[u], sight);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int key = 8 * (i / 2) + 2 * (lane % 4) + i % 2;
          if (key < seen.begin || key >= seen.end) scores[t][4 * u + i / 2][2 * h + i % 2] = -INFINITY;
        }
      }
    }
}

/// Takes a step's scores into the running softmax, and its values into the outputs.
template <class C>
__device__ __forceinline__ void take_step(float (&scores)[C::kFragments][C::kKeys / 8][4], const std::byte* values,
                                          int lane, WarpState<C>& state) {
#pragma unroll
  for (int t = 0; t < C::kFragments; ++t) {
    float shrink[2];
    bool rose = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = state.top[t][h];
#pragma unroll
      for (int i = 0; i < C::kKeys / 4; ++i) top = fmaxf(top, scores[t][i / 2][2 * h + i % 2]);
      top = quad_max(top);
      shrink[h] = gpu::fast_exp2(state.top[t][h] - top);
      rose = rose || top != state.top[t][h];
      state.top[t][h] = top;
      state.total[t][h] *= shrink[h];
    }
    if (__any_sync(gpu::kAllLanes, rose)) {
#pragma unroll
      for (int e = 0; e < C::kDim / 8; ++e)
#pragma unroll
        for (int i = 0; i < 4; ++i) state.out[t][e][i] *= shrink[i / 2];
    }
  }
#pragma unroll
  for (int u = 0; u < C::kTiles; ++u) {
    uint32_t weights[2][C::kFragments][4];  // of 16 positions each
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int t = 0; t < C::kFragments; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // query half i % 2, keys 8 (i / 2) ..
          const float(&of_keys)[4] = scores[t][4 * u + 2 * j + i / 2];
          const float x = gpu::fast_exp2(of_keys[2 * (i % 2)] - state.top[t][i % 2]);
          const float y = gpu::fast_exp2(of_keys[2 * (i % 2) + 1] - state.top[t][i % 2]);
          state.total[t][i % 2] += x + y;
          weights[j][t][i] = gpu::pack_f16(x, y);
        }
#pragma unroll
    for (int e = 0; e < C::kDim / 8; e += 2) {
      uint32_t b[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) load_words(values + u * C::kTileBytes + ((e + i) * 32 + lane) * 16, b[i]);
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int t = 0; t < C::kFragments; ++t)
            gpu::mma_f16(state.out[t][e + i], weights[j][t], b[i][2 * j], b[i][2 * j + 1]);
    }
  }
}

/// Outputs of the warp's queries, by way of `shared_floats` [kWarpQueries, kDim], which is the warp's own.
template <class C>
__device__ void store(const WarpState<C>& state, const DeviceAttention& a, const StepRow* span, int kv_head,
                      const Queries& queries, float* shared_floats, int lane) {
  constexpr int kPer = C::kDim / 32;
  const int r = lane / 4, c = lane % 4;
#pragma unroll
  for (int t = 0; t < C::kFragments; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float inverse = 1.0f / quad_sum(state.total[t][h]);
      float* const row = shared_floats + (16 * t + r + 8 * h) * C::kDim;
#pragma unroll
      for (int e = 0; e < C::kDim / 8; ++e)
        *reinterpret_cast<float2*>(row + 8 * e + 2 * c) =
            make_float2(state.out[t][e][2 * h] * inverse, state.out[t][e][2 * h + 1] * inverse);
    }
  __syncwarp();
  const RotationRow<kPer> table(a.v.rotation, lane);
  const int n = min(C::kWarpQueries, queries.n - queries.first);
  for (int i = 0; i < n; ++i) {
    float x[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = shared_floats[i * C::kDim + lane + 32 * j];
    prefill::store_row(a, span, kv_head, queries, i, table, lane, x);
  }
}

template <class C>
__device__ void store_part(const WarpState<C>& state, const PartRows& parts, int64_t first_row, int n_kv_heads,
                           int n_rows, int lane) {
  const int r = lane / 4, c = lane % 4;
#pragma unroll
  for (int t = 0; t < C::kFragments; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = quad_sum(state.total[t][h]);
      const int i = 16 * t + r + 8 * h;
      if (i >= n_rows) continue;
      const int64_t row = first_row + int64_t(i) * n_kv_heads;
      float* const out = parts.out + row * C::kDim + 2 * c;
#pragma unroll
      for (int e = 0; e < C::kDim / 8; ++e)
        *reinterpret_cast<float2*>(out + 8 * e) = make_float2(state.out[t][e][2 * h], state.out[t][e][2 * h + 1]);
      if (c == 0) parts.state[row] = make_float2(state.top[t][h], total);
    }
}

/// Blocks: (block of the list, kv head). kAsF16: both sides hold kind f16 and nothing else. kSpecial: an
/// attention window or sink logits; others need the registers.
template <class C, bool kAsF16, bool kSpecial>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    prefill_kernel(const DeviceAttention a, const AttnBlock* blocks, const PartRows parts) {
  static_assert(!kAsF16 || !C::kDirect);
  constexpr int kAhead = std::max(1, C::kStages / 2);       // steps whose tiles are under way
  constexpr int kRaw = kAsF16 ? C::kStages : kAhead;        // stages of tiles as they come
  constexpr int kF16Stages = kAsF16 ? C::kStages : kAhead;  // and of f16
  // With room for two steps of f16, one half of the warps feeds the tensor cores while the other turns the next step's
  // tiles to f16, of the first step in front of all.
  constexpr bool kBeside = !kAsF16 && kF16Stages > 1;
  __shared__ gpu::Arrival arrivals[kRaw][C::kSides];
  __shared__ Units units;
  __shared__ Sight sights[C::kQueries];
  constexpr int kKnown = std::max(2, C::kStages);  // steps whose units are known
  __shared__ int unit_bits[kKnown][C::kTiles];
  __shared__ uint4 centres[C::kCentres][C::kDim / 8];
  std::byte* const shared = gpu::dynamic_shared<std::byte>();
  std::byte* const f16_tiles = shared + C::kQueryBytes;
  std::byte* const raw = kAsF16 ? f16_tiles : f16_tiles + kF16Stages * C::kStageBytes;
  const AttnBlock block = blocks[blockIdx.x];
  const StepRow* const span = a.rows.rows + block.first;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, kv_head = int(blockIdx.y);
  const int group = a.group(), n_queries = block.n * group, n_past = span[0].position;
  const Queries queries{block.first_query + warp * C::kWarpQueries, n_queries, group};
  const int32_t* const pages = a.rows.pages + int64_t(span[0].slot) * a.rows.page_pitch;
  const Side k{a.k, pages, span[0], kv_head}, v{a.v, pages, span[0], kv_head};

  const int first_n = n_past + block.first_query / group + 1;
  const int last_n = n_past + (min(block.first_query + C::kQueries, n_queries) - 1) / group + 1;
  // No query of the warp sees more; nothing of a warp without queries.
  const int warp_keys = queries.first < n_queries ? n_past + queries.token(C::kWarpQueries - 1) + 1 : 0;
  if (threadIdx.x == 0) units.set(a, first_n, last_n, block.part, block.n_parts, kSpecial);
  if (int(threadIdx.x) < C::kQueries) {
    const int n = n_past + min(block.first_query + int(threadIdx.x), n_queries - 1) / group + 1;
    sights[threadIdx.x] = {n, prefill::coded_tiles(a.k.retention, n), prefill::coded_tiles(a.v.retention, n),
                           kSpecial ? a.k.first_seen(n) : 0};
  }
  if (warp == 0) gpu::set_up_arrivals(&arrivals[0][0], kRaw * C::kSides, lane);
  __syncthreads();

  // Warp i starts tile i of each step. Past the last unit the step's first comes once more, unseen: masked values must
  // be finite, too.
  Unit coming = units.first();
  const bool turns = !kAsF16 && a.k.turn.n_pairs > 0;
  const auto put_centre_of = [&](int tile) {
    put_centre<C::kDim>(a.k.centre_of(span[0].slot, kv_head), a.k.turn, a.k.rotation, min(tile, units.end_tile - 1),
                        lane, centres[tile % C::kCentres]);
  };
  const auto start = [&](int step) {
    if (warp >= C::kSides && !C::kDirect) return;
    const Unit first = coming;
    Unit own = first;
#pragma unroll
    for (int i = 0; i < C::kTiles; ++i) {
      if (i == warp % C::kTiles && !units.ended(coming)) own = coming;
      if (warp == 0 && lane == 0) unit_bits[step % kKnown][i] = coming.bits;
      if (!units.ended(coming)) coming = units.next(coming);
    }
    if (units.ended(first)) return;
    if (!kBeside && turns && warp < C::kTiles) put_centre_of(own.tile());
    if constexpr (C::kDirect) return;
    gpu::Arrival* const arrival = &arrivals[step % kRaw][warp];
    std::byte* const to = raw + step % kRaw * C::kStageBytes + warp * C::kTileBytes;
    if (warp < C::kTiles) k.start(own, own.k_coded(), arrival, to, lane);
    else v.start(own, own.v_coded(), arrival, to, lane);
  };
  const auto wait_for = [&](int step, int tile) {
    gpu::wait_for_piece(&arrivals[step % kRaw][tile], unsigned(step / kRaw) & 1u);
  };
  const auto unit_of = [&](int step, int i) { return Unit{unit_bits[step % kKnown][i]}; };

  const auto to_f16 = [&](int step) {
    if (units.ended(unit_of(step, 0))) return;
    constexpr int kQuads = C::kDim / 32, kPieces = C::kSides * kQuads;
#pragma unroll 1
    for (int piece = warp; piece < kPieces; piece += C::kWarps) {
      const int at = piece / kQuads, quad = piece % kQuads;
      Unit u = unit_of(step, at % C::kTiles);
      if (units.ended(u)) u = unit_of(step, 0);
      const std::byte* from = raw + step % kRaw * C::kStageBytes + at * C::kTileBytes;
      std::byte* const to = f16_tiles + step % kF16Stages * C::kStageBytes + at * C::kTileBytes;
      if constexpr (C::kDirect) from = at < C::kTiles ? k.tile(u, u.k_coded()) : v.tile(u, u.v_coded());
      else wait_for(step, at);
      const uint4* const centre = at < C::kTiles && turns ? centres[u.tile() % C::kCentres] : nullptr;
      const auto place = [&](int t) { return to + ((4 * quad + t) * 32 + lane) * 16; };
      if (at < C::kTiles)
        prefill::turn_kind(prefill::kind_of(k.tiles, u, u.k_coded()), [&](auto kind) {
          prefill::TileTurn<decltype(kind)::value, C::kDim, true>(from, lane, 0).quad(quad, centre, place);
        });
      else
        prefill::turn_kind(prefill::kind_of(v.tiles, u, u.v_coded()), [&](auto kind) {
          prefill::TileTurn<decltype(kind)::value, C::kDim, false>(from, lane, 0).quad(quad, nullptr, place);
        });
    }
  };

  // The first group and the next; each warp makes one of a group.
  static_assert(!kBeside || C::kWarps == C::kCentreGroup);
  if (kBeside && turns)
#pragma unroll 1
    for (int i = 0; i < C::kCentres; i += C::kWarps)
      put_centre_of(units.first_tile / C::kCentreGroup * C::kCentreGroup + i + warp);
#pragma unroll 1
  for (int step = 0; step < kAhead; ++step) start(step);

  // Each lane reads back what it put there itself.
  std::byte* const own_queries = shared + warp * (C::kQueryBytes / C::kWarps);
  put_queries<C>(own_queries, a, span, kv_head * group, queries, a.scale * kLog2E, lane);

  WarpState<C> state;
#pragma unroll
  for (int t = 0; t < C::kFragments; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.top[t][h] = kNever, state.total[t][h] = 0;
      if (!kSpecial || !a.sink_logits || block.part > 0) continue;  // a sink is a key in front, without a value
      state.top[t][h] = a.sink_logits[kv_head * group + queries.at(16 * t + lane / 4 + 8 * h) % group] * kLog2E;
      state.total[t][h] = lane % 4 == 0 ? 1.0f : 0.0f;
    }
#pragma unroll
    for (int e = 0; e < C::kDim / 8; ++e)
#pragma unroll
      for (int i = 0; i < 4; ++i) state.out[t][e][i] = 0;
  }
  const auto multiply = [&](int step) {
    Unit of[C::kTiles];
#pragma unroll
    for (int i = 0; i < C::kTiles; ++i) of[i] = unit_of(step, i);
    if (of[0].tile() * kTilePositions >= warp_keys) return;
    const std::byte* const tiles = f16_tiles + step % kF16Stages * C::kStageBytes;
    if constexpr (kAsF16)
#pragma unroll
      for (int i = 0; i < C::kTiles; ++i) wait_for(step, i);
    float scores[C::kFragments][C::kKeys / 8][4];
    scores_of<C>(own_queries, tiles, lane, scores);
    if (!units.all_seen(of[0], of[C::kTiles - 1]))
      mask<C, kSpecial>(units, of, sights + warp * C::kWarpQueries, lane, scores);
    if constexpr (kAsF16)
#pragma unroll
      for (int i = C::kTiles; i < C::kSides; ++i) wait_for(step, i);
    take_step<C>(scores, tiles + C::kTiles * C::kTileBytes, lane, state);
  };

#pragma unroll 1
  for (int step = kBeside ? -1 : 0;; ++step) {
    // Everyone has done with the step before; tiles that come as f16 stay for kAhead steps.
    const bool is_new = !kAsF16 || step % kAhead == 0;
    if (is_new) __syncthreads();
    if (step >= 0 && units.ended(unit_of(step, 0))) break;
    if constexpr (kBeside) {
      if (step >= 0) start(step + kAhead);
      // Of tiles in use none is of the group before: the next one takes its place.
      const int tiles = unit_of(step + 1, 0).tile() / C::kCentreGroup;
      if (turns && step >= 0 && tiles != unit_of(step, 0).tile() / C::kCentreGroup)
        put_centre_of((tiles + 1) * C::kCentreGroup + warp);
      const bool turns_first = warp < C::kWarps / 2;
#pragma unroll 1
      for (int turn = 0; turn < 2; ++turn)
        if ((turn == 0) == turns_first) to_f16(step + 1);
        else if (step >= 0) multiply(step);
    } else {
      if constexpr (!kAsF16) {
        to_f16(step);
        __syncthreads();
      }
      if (is_new)
#pragma unroll
        for (int i = 0; i < (kAsF16 ? kAhead : 1); ++i) start(step + kAhead + i);
      multiply(step);
    }
  }
  __syncthreads();
  if (block.n_parts > 1) {
    const int first = block.place + warp * C::kWarpQueries;
    store_part(state, parts, int64_t(first) * a.k.n_kv_heads + kv_head, a.k.n_kv_heads, n_queries - queries.first,
               lane);
  } else {  // the outputs take the place of queries and stages
    store<C>(state, a, span, kv_head, queries, reinterpret_cast<float*>(shared) + warp * C::kWarpQueries * C::kDim,
             lane);
  }
}

template <class C>
void launch(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list) {
  const bool special = a.k.attention_window > 0 || a.sink_logits;
  const auto kernel = special                                   ? prefill_kernel<C, false, true>
                      : prefill::comes_as_f16(a) && !C::kDirect ? prefill_kernel<C, !C::kDirect, false>
                                                                : prefill_kernel<C, false, false>;
  const PartRows parts = prefill::part_rows(a, list);
  const dim3 blocks(unsigned(list.n), unsigned(a.k.n_kv_heads));
  gpu::allow_shared_bytes("prefill attention", kernel, C::kSharedBytes);
  gpu::launch("prefill attention", kernel, {blocks, C::kThreads, size_t(C::kSharedBytes), stream}, a, list.blocks,
              parts);
}

template <int kDim>
void launch(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list) {
#ifdef __HIP__
  launch<Cut<kDim, 2>>(stream, a, list);
#else
  if (list.queries == Cut<kDim, 8>::kQueries) return launch<Cut<kDim, 8>>(stream, a, list);
  if (list.queries == Cut<kDim, 4>::kQueries) return launch<Cut<kDim, 4>>(stream, a, list);
#ifndef __CUDACC__  // an emulator
  return launch<Cut<kDim, 2>>(stream, a, list);
#endif
  throw Error(ErrorKind::failure, "prefill attention: this device has too little shared memory");
#endif
}

}  // namespace

PrefillPlan prefill_attn_plan(int head_dim, const PrefillDevice& device) {
  if (device.has_warpgroups && has_wide_prefill(head_dim))
    return {.queries = kWidePrefillQueries, .blocks = gpu::multiprocessors(), .by_warpgroups = true};
  const int most_shared_bytes = device.most_shared_bytes;
  const auto queries = [&]<int kDim>() {
    // Beside what is declared in the kernels.
    if (most_shared_bytes >= Cut<kDim, 8>::kSharedBytes + (12 << 10)) return Cut<kDim, 8>::kQueries;
    if (most_shared_bytes >= gpu::kAmpereSharedBytes) return Cut<kDim, 4>::kQueries;
    return Cut<kDim, 2>::kQueries;
  };
  return {.queries = head_dim == 64    ? queries.template operator()<64>()
                     : head_dim == 128 ? queries.template operator()<128>()
                                       : queries.template operator()<256>(),
          .blocks = gpu::multiprocessors()};
}
PrefillPlan prefill_attn_plan(int head_dim) {
  return prefill_attn_plan(head_dim, {gpu::most_shared_bytes(), gpu::device_has_warpgroups()});
}

void prefill_attn(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list) {
  if (list.n == 0) return;
  if (list.by_warpgroups) wide_prefill_attn(stream, a, list);
  else if (a.k.head_dim == 64) launch<64>(stream, a, list);
  else if (a.k.head_dim == 128) launch<128>(stream, a, list);
  else launch<256>(stream, a, list);
  if (list.part_rows > 0) prefill::join_parts(stream, a, list, prefill::part_rows(a, list));
}

}  // namespace ridge
