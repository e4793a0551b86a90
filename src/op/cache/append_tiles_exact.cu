// New rows into tiles in the order of tensor cores, and tiles that leave their window: a warp a row.
#include <algorithm>

#include "gpu/tensor.h"
#include "op/cache/append_kernels.h"
#include "op/cache/exact_rows.h"
#include "op/cache/rotate_warp.h"
#include "op/cache/round_warp.h"

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

/// Of values that are not negative: their bits have the order of the values.
__device__ inline float top_of_warp(float value) {
  return __uint_as_float(__reduce_max_sync(gpu::kAllLanes, __float_as_uint(value)));
}

/// Writes a row in cache space to place `p` of a tile; its values are within the range of halves (bf16: of bf16). All
/// lanes; lane has channels lane + 32 j, which have the same place in groups four apart. With `many` other warps may write
/// nibbles of the same bytes. Returns the square of what coding took from the lane's values.
template <int kPer>
__device__ __forceinline__ float write_row(TileKind kind, bool is_k, bool many, int p, int lane, const float (&x)[kPer],
                                           std::byte* tile) {
  const bool q4 = kind == TileKind::q4;
  const int bits = kind == TileKind::f16 || kind == TileKind::bf16 ? 16 : q4 ? 4 : 8;
  // tile_place() of channel `lane`, without a division. A group of a lane is `bits` bytes; 16 bytes a lane stand
  // together, 512 a warp.
  const int r = is_k ? p & 7 : lane & 7, c = is_k ? lane >> 3 : (p & 7) >> 1;
  const int group = is_k ? p >> 3 : lane >> 3, i = is_k ? lane & 7 : (p >> 3) * 2 + (p & 1);
  const int byte = group * bits + (q4 ? i & 3 : i * bits >> 3), step = 128 * bits;
  std::byte* const to = tile + (byte >> 4) * 512 + (4 * r + c) * 16 + (byte & 15);
  float error2 = 0;
  const auto lost = [&](float value, float kept) { error2 += (value - kept) * (value - kept); };
  if (bits == 16) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const uint16_t half = kind == TileKind::f16 ? gpu::float_to_half(x[j]) : gpu::float_to_bf16(x[j]);
      tile_rows::store16(to + j * step, half);
      lost(x[j], kind == TileKind::f16 ? gpu::half_to_float(half) : gpu::bf16_to_float(half));
    }
    return error2;
  }

  uint32_t shared[kPer];  // the other nibble of V's bytes is another position's
  if (q4 && !is_k && !many)
#pragma unroll
    for (int j = 0; j < kPer; ++j) shared[j] = uint32_t(to[j * step]);
  float top[kPer], all = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) all = fmaxf(all, fabsf(x[j]));
#pragma unroll
  for (int j = 0; j < kPer; ++j) top[j] = top_of_warp(kind == TileKind::int8_row ? all : fabsf(x[j]));
  if (q4) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {  // the first of the values of largest magnitude
      const unsigned at_top = __ballot_sync(gpu::kAllLanes, fabsf(x[j]) == top[j]);
      const float found = __shfl_sync(gpu::kAllLanes, x[j], __ffs(int(at_top)) - 1);
      top[j] = top[j] > 0 ? found : 0.0f;
    }
  }
  // A block is one element of every lane. Lanes work out the scale of one each, of block lane % kPer.
#pragma unroll
  for (int half = 1; half < kPer; half *= 2)
#pragma unroll
    for (int j = 0; j < kPer; j += 2 * half) top[j] = lane & half ? top[j + half] : top[j];
  const float scale = q4 ? top[0] / -8.0f : top[0] / 127.0f, inverse = fabsf(scale) > 1e-38f ? 1.0f / scale : 0.0f;
  const uint16_t half_scale = gpu::float_to_half(scale);
  const float kept_scale = gpu::half_to_float(half_scale);
  if (lane < (kind == TileKind::int8_row ? 1 : kPer))
    tile_rows::store16(tile + kPer * step + 2 * ((4 * lane + ((p & 7) >> 1)) * 8 + (p >> 3) * 2 + (p & 1)), half_scale);
  if (!q4) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int code = int8_code(x[j], __shfl_sync(gpu::kAllLanes, inverse, j));
      to[j * step] = std::byte(code);
      lost(x[j], float(code) * __shfl_sync(gpu::kAllLanes, kept_scale, j));
    }
    return error2;
  }
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const float per_step = __shfl_sync(gpu::kAllLanes, inverse, j);
    const int code = min(max(int(x[j] * per_step + 8.5f), 0), 15);
    const uint32_t nibble = uint32_t(code) ^ 8u;
    lost(x[j], float(code - 8) * __shfl_sync(gpu::kAllLanes, kept_scale, j));
    const int shift = i & 4;
    if (is_k) {  // bytes hold channels i and i + 4 of this row
      const uint32_t upper = __shfl_down_sync(gpu::kAllLanes, nibble, 4);
      if (i < 4) to[j * step] = std::byte(nibble | upper << 4);
    } else if (many) {
      auto* const word = reinterpret_cast<uint32_t*>(to + j * step - (byte & 3));
      const int at = 8 * (byte & 3) + shift;
      atomicAnd(word, ~(15u << at));
      atomicOr(word, nibble << at);
    } else {
      to[j * step] = std::byte((shared[j] & ~(15u << shift)) | nibble << shift);
    }
  }
  return error2;
}

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
  const float* centre = nullptr;  ///< of K and V, as all that follows
  int calibration = 0, n_sinks = 0;
  bool has_window = false;
  AppendTiles to[kAppendPlaces];
  PageCounts* counts = nullptr;
  unsigned long long* saturated = nullptr;
};
enum AppendRole : int { kQuery, kKey, kValue, kAppendRoles };

struct AppendLaunch {
  int n_heads = 0, n_kv_heads = 0, n_pairs = 0, page_pitch = 0;
  bool halves = false, many = false;
  float norm_eps = 0;
  const StepRow* step = nullptr;
  const int32_t* pages = nullptr;
  const float *cosines = nullptr, *sines = nullptr;
  float* q_out = nullptr;
  AppendRows rows[kAppendRoles];
};

/// A warp a head: first the queries', then K's, then V's. The kernel is one chain of waits, so everything that the grid
/// before does not write is asked for before that has ended, and there is one copy of each piece of code: instructions
/// come from far away, too.
template <int kPer>
__global__ void __launch_bounds__(32) append_kernel(const AppendLaunch a) {
  constexpr int kDim = 32 * kPer;
  __shared__ float room[kDim];
  gpu::let_next_grid_start();
  const int lane = int(threadIdx.x), block = int(blockIdx.x);
  const StepRow step = a.step[blockIdx.y];
  const int role = int(block >= a.n_heads) + int(block >= a.n_heads + a.n_kv_heads);
  const AppendRows& r = a.rows[role];
  const int head = block - r.first, position = step.position;
  if (step.slot < 0) return;
  const int64_t slot_head = int64_t(step.slot) * a.n_kv_heads + head;  // of K and V
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
  if (has_norm) norm_head<kPer>(weight, norm_eps, x);
  if (turns) angles.turn(lane, room, x);
  rotate_row(rotation, table, true, lane, x);
  if (role == kQuery) {
    float* const to = a.q_out + (int64_t(step.row) * a.n_heads + head) * kDim + lane;
#pragma unroll
    for (int j = 0; j < kPer; ++j) to[32 * j] = x[j];
    return;
  }

  // Rows that a centre is taken from are rounded before it is: they are kept without it until it is known.
  if (__builtin_expect(position < calibration, 0)) round_as<kPer>(r.to[sink ? kToSinks : kToRecent].kind, x);
  if (has_centre)
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] -= centre[j];

  // As the host: where anything is kept exact all rows are rounded so, coded ones then from the rounded values.
  int saturated = 0;
#pragma unroll 1
  for (;;) {
    if (place == kToCoded && n_sinks > 0) saturated += round_as<kPer>(TileKind::f16, x);
    float norm2 = 0;
#pragma unroll
    for (int j = 0; j < kPer; ++j) norm2 += x[j] * x[j];
    saturated += saturate<kPer>(kind, x);
    const float error2 = write_row<kPer>(kind, role == kKey, many, position & (kTilePositions - 1), lane, x, tile);
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

// --- A tile that leaves the window ---

/// Rows of a block: positions 8 j + 2 c, 8 j + 2 c + 1 of the tile, which share words of the tile with no others.
constexpr int kRows = 8;
__device__ int row_position(int c, int row) { return 8 * (row / 2) + 2 * c + row % 2; }

template <int kBits>
struct Rotor {
  using Codes = RotorCodes<kBits>;
  static constexpr int kCount = 1 << kBits;

  __device__ static int nearest(float x) {
    constexpr LevelTable<kBits> levels = Codes::kLevels;
    int code = 0;
#pragma unroll
    for (int i = 0; i + 1 < kCount; ++i) code += x >= 0.5f * (levels.at[i] + levels.at[i + 1]);
    return code;
  }
  __device__ static float level(int code) {
    constexpr LevelTable<kBits> levels = Codes::kLevels;
    return levels.at[code];
  }
};

/// RotorRow::encode by a warp, the host's operations on every element in the host's order. `row` [kDim] holds the
/// values in shared memory; codes go to `codes` [kDim]; u, pull and residual are shared memory of the warp, [kDim]
/// each. Returns the scale.
template <int kBits, int kPer>
__device__ uint16_t encode_row(const float* row, const float* metric, KvScale rule, int lane, uint8_t* codes, float* u,
                               float* pull, float* residual, int& saturated) {
  using R = Rotor<kBits>;
  constexpr int kDim = 32 * kPer;
  double norm2 = 0;
  if (lane == 0)
    for (int i = 0; i < kDim; ++i) {
      int replaced = 0;
      const double x = saturate_f16(row[i], replaced);
      norm2 += x * x;
      saturated += replaced;
    }
  norm2 = __shfl_sync(gpu::kAllLanes, norm2, 0);
  const float norm = float(sqrt(norm2));
  const float to_unit = norm > 0 ? sqrtf(float(kDim)) / norm : 0.0f;
  int replaced = 0;
  for (int i = lane; i < kDim; i += 32) {
    u[i] = saturate_f16(row[i], replaced) * to_unit;
    codes[i] = uint8_t(R::nearest(u[i]));
  }
  __syncwarp();

  double sum = 0;  // lane 0: <x, x>; lane 1: <x, l>; lane 2: <l, l>
  if (metric != nullptr) {
    float pulls[kPer] = {}, residuals[kPer] = {};  // channels kPer lane + j
    for (int i = 0; i < kDim; ++i) {
      const float value = u[i], error = value - R::level(codes[i]);
      const float* m = metric + int64_t(i) * kDim + kPer * lane;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        pulls[j] = pulls[j] + value * m[j];
        residuals[j] = residuals[j] + error * m[j];
      }
    }
    for (int pass = 0; pass < kRoundingPasses; ++pass)
      for (int i = 0; i < kDim; ++i) {
        const float* m = metric + int64_t(i) * kDim;
        const int owner = i / kPer;
        float here = 0;
#pragma unroll
        for (int j = 0; j < kPer; ++j)
          if (j == i % kPer) here = residuals[j];
        here = __shfl_sync(gpu::kAllLanes, here, owner);
        const int old = codes[i];
        const float level = R::level(old), step = here / m[i];
        const int code = R::nearest(level + step);
        if (code == old) continue;
        const float change = R::level(code) - level;
        __syncwarp();
        if (lane == 0) codes[i] = uint8_t(code);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < kPer; ++j) residuals[j] = residuals[j] - change * m[kPer * lane + j];
      }
#pragma unroll
    for (int j = 0; j < kPer; ++j) pull[kPer * lane + j] = pulls[j], residual[kPer * lane + j] = residuals[j];
    __syncwarp();
    if (lane < 3)
      for (int i = 0; i < kDim; ++i) {
        const double level = R::level(codes[i]);
        sum += lane == 0   ? double(pull[i]) * u[i]
               : lane == 1 ? level * pull[i]
                           : level * (double(pull[i]) - residual[i]);
      }
    const double back = to_unit > 0 ? 1.0 / to_unit : 0.0;
    if (lane == 0) sum *= back * back;
    if (lane == 1) sum *= back;
  } else if (lane < 3) {
    for (int i = 0; i < kDim; ++i) {
      int ignored = 0;
      const float x = saturate_f16(row[i], ignored);
      const double level = R::level(codes[i]);
      sum += lane == 0 ? double(x) * x : lane == 1 ? level * x : level * level;
    }
  }
  typename RotorCodes<kBits>::Fit fit;
  fit.size2 = __shfl_sync(gpu::kAllLanes, sum, 0);
  fit.dot = __shfl_sync(gpu::kAllLanes, sum, 1);
  fit.levels2 = __shfl_sync(gpu::kAllLanes, sum, 2);
  int lost = 0;
  const uint16_t scale = f32_to_f16(saturate_f16(fit.scale(rule), lost));
  if (lane == 0) saturated += lost;
  __syncwarp();
  return scale;
}

/// Shared memory of a block that codes a quarter of a tile.
template <int kPer>
struct QuarterRoom {
  float values[kRows][4][32 * kPer];  // row, u, pull, residual
  uint8_t codes[kRows][32 * kPer];
  alignas(16) uint32_t words[4 * 32 * kPer];  // a tile's codes of at most 4 bits, of which this block's lanes are used
};

/// Codes quarter c of a tile; value(p, d) is channel d of the tile's position p. A warp a row.
template <int kPer, class Value>
__device__ void encode_quarter(QuarterRoom<kPer>& room, const KvTiles& side, const float* metric, int c,
                               std::byte* tile, PageCounts& counts, Value value) {
  constexpr int kDim = 32 * kPer;
  const TileKind kind = side.kind;
  const bool is_k = side.is_k;
  const KvScale rule = side.scale;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, p = row_position(c, warp);
  auto& values = room.values;
  auto& codes = room.codes;
  auto& words = room.words;
  float norm2 = 0, error2 = 0;
  for (int d = lane; d < kDim; d += 32) {
    values[warp][0][d] = value(p, d);
    norm2 += values[warp][0][d] * values[warp][0][d];
  }
  __syncwarp();
  int saturated = 0;
  const auto encode = [&]<int kBits>() {
    return encode_row<kBits, kPer>(values[warp][0], metric, rule, lane, codes[warp], values[warp][1], values[warp][2],
                                   values[warp][3], saturated);
  };
  const TileShape shape(kind, kDim);
  if (kind == TileKind::rotor3 || kind == TileKind::rotor4) {
    const uint16_t scale = kind == TileKind::rotor3 ? encode.template operator()<3>() : encode.template operator()<4>();
    if (lane == 0) tile_rows::store16(tile + shape.scale_at(0, p), scale);
    for (int d = lane; d < kDim; d += 32) {
      const float level = kind == TileKind::rotor3 ? Rotor<3>::level(codes[warp][d]) : Rotor<4>::level(codes[warp][d]);
      const float error = values[warp][0][d] - level * f16_to_f32(scale);
      error2 += error * error;
    }
    __syncthreads();
    // This block's lanes of the tile: K, r = 2 c or 2 c + 1 and every column; V, column c and every r.
    const auto load = [&](int at) { return words[at / 4]; };
    const auto store = [&](int at, uint32_t word) { words[at / 4] = word; };
    const auto tile_lane_of = [&](int mine) { return is_k ? 4 * (2 * c + mine / 4) + mine % 4 : 4 * mine + c; };
    for (int unit = int(threadIdx.x); unit < 8 * kPer; unit += 32 * kRows) {
      const int tile_lane = tile_lane_of(unit % 8);
      for (int k = 0; k < 32; ++k) {
        const TilePlace at{tile_lane, unit / 8 * 4 + k / 8, k % 8};
        // Rows of this block are numbered 2 (position / 8) + position % 2.
        const int row = is_k ? 2 * (at.group % 4) + tile_lane / 4 % 2 : at.i;
        const int d = is_k ? 32 * (at.group / 4) + 8 * (tile_lane % 4) + at.i : 8 * at.group + tile_lane / 4;
        set_tile_code(kind, shape, at, codes[row][d], load, store);
      }
    }
    __syncthreads();
    for (int i = int(threadIdx.x); i < 8 * shape.lane_words; i += 32 * kRows) {
      const int at = shape.word_at(tile_lane_of(i % 8), i / 8);
      *reinterpret_cast<uint32_t*>(tile + at) = words[at / 4];
    }
  } else {
    float x[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = values[warp][0][lane + 32 * j];
    saturated += saturate<kPer>(kind, x);
    // One row after another: those of V share bytes of nibbles.
    for (int row = 0; row < kRows; ++row) {
      if (row == warp) error2 = write_row<kPer>(kind, is_k, false, p, lane, x, tile);
      __syncthreads();
    }
  }
  saturated = gpu::warp_sum(saturated);
  norm2 = gpu::warp_sum(norm2);
  error2 = gpu::warp_sum(error2);
  if (lane > 0) return;
  add_saturated(side.saturated, saturated);
  add_counts(counts, norm2, error2);
}

/// The metric of a head is read many times, in an order that leaves no room for waiting.
template <int kPer>
constexpr int kMetricBytes = kPer <= 4 ? 4 * 32 * kPer * 32 * kPer : 0;  // none where it would not fit

template <int kPer>
__device__ const float* near_metric(const float* metric, bool has_room) {
  if (metric == nullptr || !has_room || kMetricBytes<kPer> == 0) return metric;
  auto* const near = gpu::dynamic_shared<uint4>();
  for (int i = int(threadIdx.x); i < kMetricBytes<kPer> / 16; i += int(blockDim.x))
    near[i] = reinterpret_cast<const uint4*>(metric)[i];
  __syncthreads();
  return reinterpret_cast<const float*>(near);
}

/// Blocks: (quarter of a tile and tile of the span, side and kv head, spans in turn).
template <int kPer>
__global__ void __launch_bounds__(32 * kRows) leaving_kernel(const LeavingTiles a) {
  constexpr int kDim = 32 * kPer;
  __shared__ QuarterRoom<kPer> room;
  gpu::wait_for_previous_grid();
  const int head = int(blockIdx.y) % a.n_kv_heads, n_spans = *a.n_spans;
  const int i_side = int(blockIdx.y) / a.n_kv_heads;
  const KvTiles& side = a.sides ? a.sides[i_side] : a.pair[i_side];
  if (side.retention.window == 0 || int(blockIdx.z) >= n_spans) return;
  const float* const metric =
      near_metric<kPer>(side.metric ? side.metric + int64_t(head) * kDim * kDim : nullptr, a.weighs);
  for (int i = int(blockIdx.z); i < n_spans; i += int(gridDim.z)) {
    const StepSpan span = a.spans[i];
    const int tile = side.retention.coded_end(span.n_past) / kTilePositions + int(blockIdx.x) / 4;
    if (span.slot < 0 || tile >= side.retention.coded_end(span.n) / kTilePositions) continue;
    const int page = a.pages[int64_t(span.slot) * a.page_pitch + tile / kPageTiles];
    const StepRow of{.slot = span.slot, .ring = span.ring};
    __syncthreads();  // the room of the span before is free
    encode_quarter<kPer>(room, side, metric, int(blockIdx.x) % 4, side.coded_tile(page, head, tile), side.counts[page],
                         [&](int p, int d) { return read_exact(side, of, head, tile * kTilePositions + p, d); });
  }
}

}  // namespace

void append_tiles(gpu::StreamHandle stream, const DeviceAppend& a) {
  AppendLaunch launch{.n_heads = a.n_heads,
                      .n_kv_heads = a.k_tiles.n_kv_heads,
                      .n_pairs = a.n_pairs,
                      .page_pitch = a.rows.page_pitch,
                      .halves = a.rope_halves,
                      .many = a.rows.most > kTilePositions / 2,
                      .norm_eps = a.norm_eps,
                      .step = a.rows.rows,
                      .pages = a.rows.pages,
                      .cosines = a.cosines,
                      .sines = a.sines,
                      .q_out = a.q_out};
  const auto take = [&](AppendRole role, const float* from, int64_t pitch, int first, const float* norm,
                        const KvTiles& t) {
    launch.rows[role] = {
        .from = from,
        .pitch = pitch,
        .first = first,
        .turns = role != kValue && a.n_pairs > 0,
        .norm = norm,
        .rotation = t.rotation,
        .centre = role == kQuery ? nullptr : t.centre,
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
  const int head_dim = a.k_tiles.head_dim;
  const auto kernel = head_dim == 64 ? append_kernel<2> : head_dim == 128 ? append_kernel<4> : append_kernel<8>;
  gpu::launch("append", kernel,
              {dim3(unsigned(a.n_heads + 2 * launch.n_kv_heads), unsigned(a.rows.n)), 32, 0, stream, a.overlap},
              launch);
}

void encode_leaving_tiles(gpu::StreamHandle stream, const LeavingTiles& a) {
  const auto launch = [&]<int kPer>() {
    const size_t shared = a.weighs ? size_t(kMetricBytes<kPer>) : 0;
    gpu::allow_shared_bytes("encode of leaving tiles", leaving_kernel<kPer>, shared);
    gpu::launch("encode of leaving tiles", leaving_kernel<kPer>,
                {dim3(unsigned(4 * a.most_tiles), unsigned(a.n_sides * a.n_kv_heads), unsigned(a.most_spans)),
                 32 * kRows, shared, stream, a.overlap},
                a);
  };
  if (a.head_dim == 64) launch.template operator()<2>();
  else if (a.head_dim == 128) launch.template operator()<4>();
  else launch.template operator()<8>();
}

}  // namespace ridge
