// New rows into tiles in the order of tensor cores: a warp a row.
#include "gpu/tensor.h"
#include "op/cache/append_kernels.h"
#include "op/cache/exact_rows.h"
#include "op/cache/rotate_warp.h"
#include "op/cache/write_row.h"
#include "ridge/error.h"

namespace ridge {
namespace {

template <int kPer>
__device__ void norm_head(const float (&weight)[kPer], float eps, float (&x)[kPer]) {
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) sum += double(x[j]) * x[j];
  const double factor = rsqrt(gpu::warp_sum(sum) / (32 * kPer) + eps);
#pragma unroll
  for (int j = 0; j < kPer; ++j) x[j] = float(x[j] * factor * weight[j]);
}

/// What a lane needs of a position's angles, loaded ahead of its use: those of channel lane + 32 j; of whole halves
/// both channels of a pair are the lane's and angles j < kPer / 2 all there are.
template <int kPer>
struct Angles {
  float c[kPer], s[kPer];
  int n_pairs;
  bool halves, whole;

  __device__ __forceinline__ Angles(int pairs, bool in_halves)
      : n_pairs(pairs), halves(in_halves), whole(in_halves && pairs == 16 * kPer) {}
  __device__ __forceinline__ void load(const float* cosines, const float* sines, int i, int lane) {
    const int first = i * n_pairs;
    if (whole) {
#pragma unroll
      for (int j = 0; j < kPer / 2; ++j) c[j] = (cosines + first + lane)[32 * j], s[j] = (sines + first + lane)[32 * j];
      return;
    }
#pragma unroll
    for (int j = 0; j < kPer; ++j) {  // channels of no pair load any
      const int d = lane + 32 * j, pair = min(halves ? d < n_pairs ? d : d - n_pairs : d >> 1, n_pairs - 1);
      c[j] = cosines[first + pair];
      s[j] = sines[first + pair];
    }
  }
  /// `row` is shared memory [32 kPer], for pairs that lie anywhere.
  __device__ __forceinline__ void turn(int lane, float* row, float (&x)[kPer]) const {
    if (whole) {
#pragma unroll
      for (int j = 0; j < kPer / 2; ++j) {
        float &first = x[j], &second = x[j + kPer / 2];
        const float turned = first * c[j] - second * s[j];
        second = first * s[j] + second * c[j];
        first = turned;
      }
      return;
    }
    float other[kPer];
    if (!halves) {
#pragma unroll
      for (int j = 0; j < kPer; ++j) other[j] = __shfl_xor_sync(gpu::kAllLanes, x[j], 1);
    } else {
#pragma unroll
      for (int j = 0; j < kPer; ++j) row[lane + 32 * j] = x[j];
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const int d = lane + 32 * j;
        other[j] = row[d < n_pairs ? d + n_pairs : d - n_pairs];
      }
    }
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int d = lane + 32 * j;
      const bool first = halves ? d < n_pairs : d % 2 == 0;
      if (d < 2 * n_pairs) x[j] = x[j] * c[j] + other[j] * (first ? -s[j] : s[j]);
    }
  }
};

/// Where rows go: the tile of a position is number position / 32 of its head, modulo `ring`.
struct AppendTiles {
  std::byte* tiles = nullptr;
  int64_t head_bytes = 0;  ///< of a head of a slot
  int tile_bytes = 0;
  int ring = 0;  ///< tiles; 0: coded ones, in pages
  TileKind kind = TileKind::f16;
};
enum AppendPlace : int { kToSinks, kToRecent, kToCoded, kAppendPlaces };

/// What the kernel does with Q, K or V: all that does not depend on the position, worked out before the launch.
struct AppendRows {
  const float* from = nullptr;
  int64_t pitch = 0;
  int first = 0;       ///< block of head 0
  bool turns = false;  ///< RoPE
  const float* norm = nullptr;
  RotationView rotation;
  const float* centre = nullptr;  ///< of queries: K's where it turns
  CentreTurn turn;
  int calibration = 0, n_sinks = 0;  ///< of K and V, as all that follows
  bool has_window = false;
  AppendTiles to[kAppendPlaces];
  PageCounts* counts = nullptr;
  unsigned long long* saturated = nullptr;
};
enum AppendRole : int { kQuery, kKey, kValue, kAppendRoles };

struct AppendLaunch {
  int n_heads = 0, n_kv_heads = 0, group = 1, n_pairs = 0, page_pitch = 0;
  int n_all = 0;  ///< heads of Q, K and V
  bool halves = false, many = false;
  float norm_eps = 0;
  const StepRow* step = nullptr;
  const int32_t* pages = nullptr;
  const float *cosines = nullptr, *sines = nullptr;
  float *q_out = nullptr, *q_weights = nullptr;
  AppendRows rows[kAppendRoles];
};

/// Warps of a block: of a few rows and of many, as the device starts no more than a block in about a nanosecond.
constexpr int kManyAppendWarps = 4, kManyAppendRows = 128;

/// A warp a head: first the queries', then K's, then V's. Blocks: (heads, rows). The kernel is one chain of waits, so
/// everything that the grid before does not write is asked for before that has ended, and there is one copy of each
/// piece of code: instructions come from far away, too. So a centre that turns has a kernel of its own: its code cost
/// the others 4 % of a token. So have blocks of several warps, whose heads the compiler does not see to be the same in
/// all lanes: that made the code half as large again.
template <int kPer, bool kTurns, int kWarps>
__global__ void __launch_bounds__(32 * kWarps) append_kernel(const AppendLaunch a) {
  constexpr int kDim = 32 * kPer;
  __shared__ float floats_of[kWarps][kTurns ? 2 * kDim : kDim];
  gpu::let_next_grid_start();
  const int warp = kWarps == 1 ? 0 : int(threadIdx.x) / 32, lane = int(threadIdx.x) - 32 * warp;
  const int block = int(blockIdx.x) * kWarps + warp;
  float* const shared_floats = floats_of[warp];
  const StepRow step = a.step[blockIdx.y];
  const int role = int(block >= a.n_heads) + int(block >= a.n_heads + a.n_kv_heads);
  const AppendRows& r = a.rows[role];
  const int head = block - r.first, position = step.position;
  if (step.slot < 0 || (kWarps > 1 && block >= a.n_all)) return;
  const int kv_head = kTurns && role == kQuery ? int(unsigned(head) / unsigned(a.group)) : head;
  const int64_t slot_head = int64_t(step.slot) * a.n_kv_heads + kv_head;
  const float* const from = r.from + step.row * r.pitch + int64_t(head) * kDim + lane;
  const bool turns = r.turns, has_norm = r.norm != nullptr, has_centre = r.centre != nullptr;
  Angles<kPer> angles(a.n_pairs, a.halves);
  if (turns) angles.load(a.cosines, a.sines, int(blockIdx.y), lane);
  float weight[kPer] = {}, centre[kPer] = {};
  if (has_norm)
#pragma unroll
    for (int j = 0; j < kPer; ++j) weight[j] = r.norm[lane + 32 * j];
  if (has_centre)
#pragma unroll
    for (int j = 0; j < kPer; ++j) centre[j] = r.centre[slot_head * kDim + lane + 32 * j];
  const CentreTurn turn = kTurns ? r.turn : CentreTurn();
  Angles<kPer> tile_angles(turn.n_pairs, turn.halves);
  const bool moves = has_centre && role != kQuery, centre_turns = moves && turn.n_pairs > 0;
  if (kTurns && centre_turns) {
    const float* const of_tile = turn.tile(position / kTilePositions);
    tile_angles.load(of_tile, of_tile + turn.n_pairs, 0, lane);
  }
  const RotationView rotation = r.rotation;
  const RotationRow<kPer> table(rotation, lane);
  const float norm_eps = a.norm_eps;
  const int n_sinks = r.n_sinks, calibration = r.calibration;
  const bool has_window = r.has_window, many = a.many;
  // Where to.
  const bool sink = position < n_sinks;
  AppendPlace place = sink ? kToSinks : has_window ? kToRecent : kToCoded;
  int page = 0;
  if (role != kQuery && !has_window) page = a.pages[int64_t(step.slot) * a.page_pitch + position / kPagePositions];
  const auto tile_at = [&](const AppendTiles& to, AppendPlace where) {
    int tile = position / kTilePositions;
    if (where == kToCoded)
      return to.tiles + (int64_t(page) * a.n_kv_heads + head) * to.head_bytes + tile % kPageTiles * to.tile_bytes;
    if (where == kToSinks) return to.tiles + slot_head * to.head_bytes;
    tile = int(unsigned(tile) % unsigned(to.ring));
    return to.tiles + (int64_t(step.ring) * a.n_kv_heads + head) * to.head_bytes + int64_t(tile) * to.tile_bytes;
  };
  std::byte* tile = tile_at(r.to[place], place);
  TileKind kind = r.to[place].kind;
  gpu::wait_for_previous_grid();

  float x[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) x[j] = from[32 * j];
  if (kTurns && centre_turns) tile_angles.turn(lane, shared_floats + kDim, centre);  // while the row comes
  if (has_norm) norm_head<kPer>(weight, norm_eps, x);
  if (turns) angles.turn(lane, shared_floats, x);
  if (kTurns && role == kQuery && has_centre) {
    float* const weights = a.q_weights + (int64_t(step.row) * a.n_heads + head) * kDim;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kPer; ++j) shared_floats[lane + 32 * j] = x[j], shared_floats[kDim + lane + 32 * j] = centre[j];
    __syncwarp();
    for (int i = lane; i < turn.n_pairs; i += 32) turn.weigh_pair(shared_floats, shared_floats + kDim, i, 1, weights);
    for (int i = 2 * turn.n_pairs + lane; i < turn.pitch(); i += 32) weights[i] = 0;
  } else if (moves) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] -= centre[j];
  }
  rotate_row(rotation, table, true, lane, x);
  if (role == kQuery) {
    float* const to = a.q_out + (int64_t(step.row) * a.n_heads + head) * kDim + lane;
#pragma unroll
    for (int j = 0; j < kPer; ++j) to[32 * j] = x[j];
    return;
  }

  // Rows that a centre is taken from are rounded before it is: they are kept without it until it is known.
  if (__builtin_expect(position < calibration, 0)) round_as<kPer>(r.to[sink ? kToSinks : kToRecent].kind, x);

  // As the host: where anything is kept exact all rows are rounded so, coded ones then from the rounded values.
  int saturated = 0;
#pragma unroll 1
  for (;;) {
    if (place == kToCoded && n_sinks > 0) saturated += round_as<kPer>(TileKind::f16, x);
    float norm2 = 0;
#pragma unroll
    for (int j = 0; j < kPer; ++j) norm2 += x[j] * x[j];
    saturated += saturate<kPer>(kind, x);
    const float error2 = write_row<kPer>(kind, role == kKey ? KvSide::k : KvSide::v, many,
                                         position & (kTilePositions - 1), lane, x, tile);
    if (place == kToCoded) {
      const float all_norm2 = gpu::warp_sum(norm2), all_error2 = gpu::warp_sum(error2);
      if (lane == 0) add_counts(r.counts[page], all_norm2, all_error2);
    }
    if (place == kToCoded || has_window) break;
    place = kToCoded;
    tile = tile_at(r.to[kToCoded], kToCoded);
    kind = r.to[kToCoded].kind;
  }
  if (!__any_sync(gpu::kAllLanes, saturated > 0)) return;
  saturated = gpu::warp_sum(saturated);
  if (lane == 0) add_saturated(r.saturated, saturated);
}

}  // namespace

void append_tiles(gpu::StreamHandle stream, const DeviceAppend& a) {
  if (a.k_tiles.turn.first != 0) throw Error(ErrorKind::failure, "pairs of RoPE behind the first channel");
  AppendLaunch launch{.n_heads = a.n_heads,
                      .n_kv_heads = a.k_tiles.n_kv_heads,
                      .group = a.n_heads / a.k_tiles.n_kv_heads,
                      .n_pairs = a.n_pairs,
                      .page_pitch = a.rows.page_pitch,
                      .halves = a.rope_halves,
                      .many = a.rows.most > kTilePositions / 2,
                      .norm_eps = a.norm_eps,
                      .step = a.rows.rows,
                      .pages = a.rows.pages,
                      .cosines = a.cosines,
                      .sines = a.sines,
                      .q_out = a.q_out,
                      .q_weights = a.q_weights};
  const auto take = [&](AppendRole role, const float* from, int64_t pitch, int first, const float* norm,
                        const KvTiles& t) {
    launch.rows[role] = {
        .from = from,
        .pitch = pitch,
        .first = first,
        .turns = role != kValue && a.n_pairs > 0,
        .norm = norm,
        .rotation = t.rotation,
        .centre = role == kQuery && !a.q_weights ? nullptr : t.centre,
        .turn = t.turn,
        .calibration = t.retention.calibration,
        .n_sinks = t.n_sinks,
        .has_window = t.ring_tiles > 0,
        .to = {{t.sinks, t.sink_bytes, 0, 0, TileKind::f16},
               {t.ring, t.ring_tiles * t.ring_tile_bytes, int(t.ring_tile_bytes), t.ring_tiles, t.recent_kind},
               {t.pages, kPageTiles * t.tile_bytes, int(t.tile_bytes), 0, t.kind}},
        .counts = t.counts,
        .saturated = t.saturated};
  };
  take(kQuery, a.q, a.q_pitch, 0, a.q_norm, a.k_tiles);
  take(kKey, a.k, a.k_pitch, a.n_heads, a.k_norm, a.k_tiles);
  take(kValue, a.v, a.v_pitch, a.n_heads + launch.n_kv_heads, nullptr, a.v_tiles);
  launch.n_all = a.n_heads + (a.queries_only ? 0 : 2 * launch.n_kv_heads);
  const auto run = [&]<int kPer, bool kTurns, int kWarps>() {
    gpu::launch(
        "append", append_kernel<kPer, kTurns, kWarps>,
        {dim3(unsigned(gpu::ceil_div(launch.n_all, kWarps)), unsigned(a.rows.n)), 32 * kWarps, 0, stream, a.overlap},
        launch);
  };
  const auto run_for = [&]<bool kTurns, int kWarps>() {
    const int head_dim = a.k_tiles.head_dim;
    if (head_dim == 64) run.template operator()<2, kTurns, kWarps>();
    else if (head_dim == 128) run.template operator()<4, kTurns, kWarps>();
    else run.template operator()<8, kTurns, kWarps>();
  };
  const bool turns =
      (a.k_tiles.centre && a.k_tiles.turn.n_pairs > 0) || (a.v_tiles.centre && a.v_tiles.turn.n_pairs > 0);
  const bool many = a.rows.n >= kManyAppendRows;
  if (turns) many ? run_for.template operator()<true, kManyAppendWarps>() : run_for.template operator()<true, 1>();
  else many ? run_for.template operator()<false, kManyAppendWarps>() : run_for.template operator()<false, 1>();
}

}  // namespace ridge
