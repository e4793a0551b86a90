#include <algorithm>

#include "op/attn/attn_cuda.h"
#include "op/attn/prefill_tiles.h"

namespace ridge {
namespace {

using tiles::kNever;
using tiles::quad_max;
using tiles::quad_sum;

constexpr float kLog2E = 1.44269504f;

/// Who turns the tiles of a step to halves.
enum class Turning {
  none,     ///< they come as halves
  between,  ///< the warps that multiply, in turn: blocks that share a multiprocessor take turns as well
  beside,   ///< as many warps again, one step ahead: a block alone on its multiprocessor
};

/// How the work is cut. A warp has kFragments x 16 queries: every fragment of K and V it loads meets kFragments
/// products, and shared memory could not feed the tensor cores with one.
template <int kDim_>
struct Cut {
  static constexpr int kDim = kDim_, kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kFragments = kDim == 256 ? 1 : 2;  // outputs of 16 x 256 fill the registers
  static constexpr int kTiles = kDim == 256 ? 1 : 2;      // of positions a step
  static constexpr int kKeys = kTiles * kTilePositions;
  static constexpr int kWarpQueries = 16 * kFragments, kQueries = kWarpQueries * kWarps;
  static constexpr int kBlocks = 2;  // on a multiprocessor

  static constexpr int kTileBytes = kTilePositions * 2 * kDim;  // of halves
  static constexpr int kStageBytes = 2 * kTiles * kTileBytes;   // K and V
  static constexpr int kQueryBytes = kQueries * 2 * kDim;
  static constexpr int kOutBytes = kQueries * kDim * 4;
  /// Two stages: of halves that come as they are, the one that is used and the next; else tiles that were turned to
  /// halves, and the next ones as they came. Two of each where warps turn beside.
  static constexpr int shared_bytes(Turning turning) {
    return std::max(kQueryBytes + (turning == Turning::beside ? 4 : 2) * kStageBytes, kOutBytes);
  }
  static constexpr int threads(Turning turning) { return (turning == Turning::beside ? 2 : 1) * kThreads; }
};

/// A tile of positions from one source a side. The sinks are a unit of their own, in front.
struct Unit {
  int bits = 0;  // tile + 1, or 0 for the sinks; then whether V and K are coded: registers are scarce

  __device__ bool sinks() const { return bits < 4; }
  __device__ int tile() const { return max(0, (bits >> 2) - 1); }
  __device__ bool k_coded() const { return bits & 1; }
  __device__ bool v_coded() const { return bits & 2; }
  __device__ Unit after() const { return {bits + 1}; }
};

/// What of a side the queries of a block need: tiles below coded_min are coded for all of them, those from coded_max on
/// for none.
struct Reach {
  int coded_min = 0, coded_max = 0;
  bool has_exact = false;  // rows beside the sinks

  __device__ Reach(const KvTiles& t, int first_n, int last_n)
      : coded_min(coded_tiles(t.retention, first_n)),
        coded_max(coded_tiles(t.retention, last_n)),
        has_exact(t.ring_tiles > 0) {}
  /// Tiles that a query which sees n positions sees coded.
  __device__ static int coded_tiles(const KvRetention& r, int n) {
    return (r.coded_end(n) + kTilePositions - 1) / kTilePositions;
  }
  /// Whether some query sees the tile so.
  __device__ bool reads(int tile, bool coded) const {
    return coded ? tile < coded_max : has_exact && tile >= coded_min;
  }
  /// Whether every query does.
  __device__ bool all_read(int tile, bool coded) const { return coded ? tile < coded_min : tile >= coded_max; }
};

/// The units of a block in order.
struct Units {
  Reach k, v;
  int n_tiles = 0, n_sinks = 0;
  bool k_sinks = false, v_sinks = false;  // sides that have sinks
  bool alike = false;                     // K and V are coded at the same positions

  __device__ Units(const DeviceAttention& a, int first_n, int last_n)
      : k(a.k, first_n, last_n),
        v(a.v, first_n, last_n),
        n_tiles((last_n + kTilePositions - 1) / kTilePositions),
        n_sinks(min(last_n, max(a.k.n_sinks, a.v.n_sinks))),
        k_sinks(a.k.n_sinks > 0),
        v_sinks(a.v.n_sinks > 0),
        alike(a.k.retention.window == a.v.retention.window && a.k.retention.tile == a.v.retention.tile &&
              a.k.retention.calibration == a.v.retention.calibration) {}

  __device__ bool ended(Unit u) const { return u.bits >> 2 > n_tiles; }
  __device__ bool is_read(Unit u) const {
    const bool k_coded = u.k_coded(), v_coded = u.v_coded();
    if (u.sinks()) {
      if (n_sinks == 0) return false;
      return (k_sinks ? !k_coded : k.reads(0, k_coded)) && (v_sinks ? !v_coded : v.reads(0, v_coded));
    }
    return k.reads(u.tile(), k_coded) && v.reads(u.tile(), v_coded) && !(alike && k_coded != v_coded);
  }
  __device__ Unit from(Unit u) const {
    while (!ended(u) && !is_read(u)) u = u.after();
    return u;
  }
  __device__ Unit next(Unit u) const { return from(u.after()); }
};

/// Positions [begin, end) of a unit are what a query that sees n positions sees there.
struct Seen {
  int begin, end;
};
__device__ __forceinline__ Seen seen_of(const DeviceAttention& a, const Units& units, Unit u, int n) {
  const int tile = u.tile();
  const bool k_there = (u.sinks() && units.k_sinks) || (tile < Reach::coded_tiles(a.k.retention, n)) == u.k_coded();
  const bool v_there = (u.sinks() && units.v_sinks) || (tile < Reach::coded_tiles(a.v.retention, n)) == u.v_coded();
  if (!k_there || !v_there || units.ended(u)) return {0, 0};
  if (u.sinks()) return {0, min(units.n_sinks, n)};
  return {tile == 0 ? units.n_sinks : 0, n - tile * kTilePositions};
}

/// A side of the block's kv head.
struct Side {
  const KvTiles& tiles;
  const int32_t* pages;
  StepRow of;
  int head;

  __device__ TileKind kind(bool sinks, bool coded) const {
    return sinks && tiles.n_sinks > 0 ? TileKind::f16 : coded ? tiles.kind : tiles.recent_kind;
  }
  __device__ const std::byte* at(Unit u, bool coded) const {
    if (u.sinks() && tiles.n_sinks > 0) return tiles.sink_tile(of.slot, head);
    const int tile = u.tile();
    return coded ? tiles.coded_tile(pages[tile / kPageTiles], head, tile) : tiles.ring_tile(of.ring, head, tile);
  }
};

template <class C>
__device__ __forceinline__ void start_tile(const Side& side, Unit u, bool coded, std::byte* to) {
  const std::byte* const from = side.at(u, coded);
  const int bytes = TileShape(side.kind(u.sinks(), coded), C::kDim).bytes;
  for (int at = 16 * (int(threadIdx.x) % C::kThreads); at < bytes; at += 16 * C::kThreads)
    gpu::copy_async16(to + at, from + at);
}

/// The queries of a warp: query i is head i % group of token i / group. Those past the last one repeat it and are not
/// stored.
struct Queries {
  int first, n, group;  // the warp's first; all of the (span, kv head)

  __device__ int at(int i) const { return min(first + i, n - 1); }
  __device__ int token(int i) const { return at(i) / group; }
};

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
#pragma unroll
  for (int t = 0; t < C::kFragments; ++t) {
    const float* row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = queries.at(16 * t + r + 8 * h), token = at / queries.group;
      row[h] = a.q + (int64_t(span[token].row) * a.n_heads + first_head + at - token * queries.group) * C::kDim + 8 * c;
    }
#pragma unroll 4
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
    for (int n = 0; n < C::kKeys / 8; ++n) {
      uint32_t b[4];
      load_words(keys + n / 4 * C::kTileBytes + ((4 * q + n % 4) * 32 + lane) * 16, b);
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int t = 0; t < C::kFragments; ++t) gpu::mma_f16(scores[t][n], a[h][t], b[2 * h], b[2 * h + 1]);
    }
  }
}

/// Scores of what a query does not see, or not in this unit, become -infinity.
template <class C>
__device__ void mask(const DeviceAttention& a, const Units& units, const Unit (&step)[C::kTiles], const StepRow* span,
                     const Queries& queries, int lane, float (&scores)[C::kFragments][C::kKeys / 8][4]) {
#pragma unroll
  for (int t = 0; t < C::kFragments; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int n = span[0].position + queries.token(16 * t + lane / 4 + 8 * h) + 1;
#pragma unroll
      for (int u = 0; u < C::kTiles; ++u) {
        const Seen seen = seen_of(a, units, step[u], n);
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
    for (int e = 0; e < C::kDim / 8; ++e) {
      uint32_t b[4];
      load_words(values + u * C::kTileBytes + (e * 32 + lane) * 16, b);
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int t = 0; t < C::kFragments; ++t) gpu::mma_f16(state.out[t][e], weights[j][t], b[2 * j], b[2 * j + 1]);
    }
  }
}

/// Outputs out of cache space, by way of `room` [kWarpQueries, kDim], which is the warp's own.
template <class C>
__device__ void store(const WarpState<C>& state, const DeviceAttention& a, const StepRow* span, int kv_head,
                      const Queries& queries, float* room, int lane) {
  constexpr int kPer = C::kDim / 32;
  const int r = lane / 4, c = lane % 4;
#pragma unroll
  for (int t = 0; t < C::kFragments; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float inverse = 1.0f / quad_sum(state.total[t][h]);
      float* const row = room + (16 * t + r + 8 * h) * C::kDim;
#pragma unroll
      for (int e = 0; e < C::kDim / 8; ++e)
        *reinterpret_cast<float2*>(row + 8 * e + 2 * c) =
            make_float2(state.out[t][e][2 * h] * inverse, state.out[t][e][2 * h + 1] * inverse);
    }
  __syncwarp();
  const RotationRow<kPer> table(a.v.rotation, lane);
  float centre[kPer] = {};
  if (a.v.centre)
#pragma unroll
    for (int j = 0; j < kPer; ++j) centre[j] = a.v.centre_of(span[0].slot, kv_head)[lane + 32 * j];
  const int n = min(C::kWarpQueries, queries.n - queries.first);
  for (int i = 0; i < n; ++i) {
    float x[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = room[i * C::kDim + lane + 32 * j] + centre[j];
    rotate_row(a.v.rotation, table, false, lane, x);
    const int at = queries.at(i), token = at / queries.group;
    const int head = kv_head * queries.group + at - token * queries.group;
    float* const out = a.out + (int64_t(span[token].row) * a.n_heads + head) * C::kDim + lane;
#pragma unroll
    for (int j = 0; j < kPer; ++j) out[32 * j] = x[j];
  }
}

/// Blocks: (block of the list, kv head). Turning::none: both sides hold halves of kind f16 and nothing else.
template <class C, Turning kTurning>
__global__ void __launch_bounds__(C::threads(kTurning), kTurning == Turning::beside ? 1 : C::kBlocks)
    prefill_kernel(const DeviceAttention a, const AttnBlock* blocks) {
  std::byte* const shared = gpu::dynamic_shared<std::byte>();
  std::byte* const stages = shared + C::kQueryBytes;
  const AttnBlock block = blocks[blockIdx.x];
  const StepRow* const span = a.rows.rows + block.first;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, kv_head = int(blockIdx.y);
  const int group = a.group(), n_queries = block.n * group, n_past = span[0].position;
  const Queries queries{block.first_query + warp * C::kWarpQueries, n_queries, group};
  const int32_t* const pages = a.rows.pages + int64_t(span[0].slot) * a.rows.page_pitch;
  const Side k{a.k, pages, span[0], kv_head}, v{a.v, pages, span[0], kv_head};

  const int first_n = n_past + block.first_query / group + 1;
  const int last_n = n_past + (min(block.first_query + C::kQueries, n_queries) - 1) / group + 1;
  const int warp_keys = n_past + queries.token(C::kWarpQueries - 1) + 1;  // no query of the warp sees more
  const Units units(a, first_n, last_n);

  // A step's units. Past the last unit its tiles come once more, unseen: masked values must be finite, too.
  Unit step[C::kTiles], next[C::kTiles];
  const auto shown = [&](const Unit(&of)[C::kTiles], int i) { return units.ended(of[i]) ? of[0] : of[i]; };
  const auto take_units = [&](Unit u, Unit(&to)[C::kTiles]) {
#pragma unroll
    for (int i = 0; i < C::kTiles; ++i) {
      to[i] = u;
      if (!units.ended(u)) u = units.next(u);
    }
  };
  const auto start = [&](const Unit(&of)[C::kTiles], std::byte* to) {
#pragma unroll
    for (int i = 0; i < C::kTiles; ++i) {
      const Unit u = shown(of, i);
      start_tile<C>(k, u, u.k_coded(), to + i * C::kTileBytes);
      start_tile<C>(v, u, u.v_coded(), to + (C::kTiles + i) * C::kTileBytes);
    }
    gpu::copy_commit();
  };
  const auto turn = [&](const std::byte* raw, int first_warp, std::byte* halves) {
    constexpr int kQuads = C::kDim / 32, kPieces = 2 * C::kTiles * kQuads;
#pragma unroll 1
    for (int piece = warp - first_warp; piece < kPieces; piece += C::kWarps) {
      const int at = piece / kQuads, quad = piece % kQuads;  // tiles of K, then of V
      const Unit u = shown(step, at % C::kTiles);
      const std::byte* const from = raw + at * C::kTileBytes;
      std::byte* const to = halves + at * C::kTileBytes;
      if (at < C::kTiles) prefill::quad_to_halves<C::kDim, true>(k.kind(u.sinks(), u.k_coded()), from, quad, lane, to);
      else prefill::quad_to_halves<C::kDim, false>(v.kind(u.sinks(), u.v_coded()), from, quad, lane, to);
    }
  };
  const auto go_on = [&] {
#pragma unroll
    for (int i = 0; i < C::kTiles; ++i) step[i] = next[i];
  };
  take_units(units.from({}), step);

  if constexpr (kTurning == Turning::beside) {
    // Stages 0 and 1 are halves, 2 and 3 what they are turned from. These warps make those of a step while the others
    // use those of the step before.
    if (warp >= C::kWarps) {
      std::byte* const raw = stages + 2 * C::kStageBytes;
      start(step, raw);
      for (int stage = 0; !units.ended(step[0]); stage ^= 1) {
        take_units(units.next(step[C::kTiles - 1]), next);
        gpu::copy_wait<0>();
        __syncthreads();  // these warps' copies are there, and the others have done with this stage
        if (!units.ended(next[0])) start(next, raw + (stage ^ 1) * C::kStageBytes);
        turn(raw + stage * C::kStageBytes, C::kWarps, stages + stage * C::kStageBytes);
        go_on();
      }
      __syncthreads();
      __syncthreads();
      return;
    }
  } else {
    start(step, stages + (kTurning == Turning::none ? 0 : C::kStageBytes));
  }

  // Each lane reads back what it put there itself.
  std::byte* const own_queries = shared + warp * (C::kQueryBytes / C::kWarps);
  put_queries<C>(own_queries, a, span, kv_head * group, queries, a.scale * kLog2E, lane);

  WarpState<C> state;
#pragma unroll
  for (int t = 0; t < C::kFragments; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) state.top[t][h] = kNever, state.total[t][h] = 0;
#pragma unroll
    for (int e = 0; e < C::kDim / 8; ++e)
#pragma unroll
      for (int i = 0; i < 4; ++i) state.out[t][e][i] = 0;
  }

  int stage = 0;
  if constexpr (kTurning == Turning::beside) __syncthreads();
  while (!units.ended(step[0])) {
    take_units(units.next(step[C::kTiles - 1]), next);
    if constexpr (kTurning != Turning::beside) gpu::copy_wait<0>();
    __syncthreads();  // everyone's copies or halves are there, and everyone has done with the step before
    if constexpr (kTurning == Turning::none) {
      if (!units.ended(next[0])) start(next, stages + (stage ^ 1) * C::kStageBytes);
    } else if constexpr (kTurning == Turning::between) {
      turn(stages + C::kStageBytes, 0, stages);
      __syncthreads();
      if (!units.ended(next[0])) start(next, stages + C::kStageBytes);
    }
    const std::byte* const tile = stages + (kTurning == Turning::between ? 0 : stage * C::kStageBytes);
    if (step[0].tile() * kTilePositions < warp_keys) {
      float scores[C::kFragments][C::kKeys / 8][4];
      scores_of<C>(own_queries, tile, lane, scores);
      bool all_seen = true;
#pragma unroll
      for (int i = 0; i < C::kTiles; ++i) {
        const Unit u = step[i];
        all_seen = all_seen && !u.sinks() && (u.tile() > 0 || units.n_sinks == 0) &&
                   (u.tile() + 1) * kTilePositions <= first_n && units.k.all_read(u.tile(), u.k_coded()) &&
                   units.v.all_read(u.tile(), u.v_coded());
      }
      if (!all_seen) mask<C>(a, units, step, span, queries, lane, scores);
      take_step<C>(scores, tile + C::kTiles * C::kTileBytes, lane, state);
    }
    go_on();
    stage ^= 1;
  }
  __syncthreads();  // the outputs take the place of queries and stages
  store<C>(state, a, span, kv_head, queries, reinterpret_cast<float*>(shared) + warp * C::kWarpQueries * C::kDim, lane);
}

template <class C, Turning kTurning>
void launch(gpu::StreamHandle stream, const DeviceAttention& a, const AttnBlock* blocks, int n_blocks) {
  constexpr size_t kShared = size_t(C::shared_bytes(kTurning));
  gpu::allow_shared_bytes("prefill attention", prefill_kernel<C, kTurning>, kShared);
  gpu::launch("prefill attention", prefill_kernel<C, kTurning>,
              {dim3(unsigned(n_blocks), unsigned(a.k.n_kv_heads)), unsigned(C::threads(kTurning)), kShared, stream}, a,
              blocks);
}
template <class C>
void launch(gpu::StreamHandle stream, const DeviceAttention& a, const AttnBlock* blocks, int n_blocks) {
  const auto plain = [](const KvTiles& t) { return t.kind == TileKind::f16 && t.ring_tiles == 0 && t.n_sinks == 0; };
  if (plain(a.k) && plain(a.v)) return launch<C, Turning::none>(stream, a, blocks, n_blocks);
  const bool alone = n_blocks * a.k.n_kv_heads <= gpu::multiprocessors();
  if (alone && C::shared_bytes(Turning::beside) <= gpu::most_shared_bytes())
    return launch<C, Turning::beside>(stream, a, blocks, n_blocks);
  launch<C, Turning::between>(stream, a, blocks, n_blocks);
}

}  // namespace

int prefill_attn_queries(int head_dim) { return head_dim == 256 ? Cut<256>::kQueries : Cut<128>::kQueries; }

void prefill_attn(gpu::StreamHandle stream, const DeviceAttention& a, const AttnBlock* blocks, int n_blocks) {
  if (n_blocks == 0) return;
  if (a.k.head_dim == 64) launch<Cut<64>>(stream, a, blocks, n_blocks);
  else if (a.k.head_dim == 128) launch<Cut<128>>(stream, a, blocks, n_blocks);
  else launch<Cut<256>>(stream, a, blocks, n_blocks);
}

}  // namespace ridge
