#include <algorithm>
#include <string>

#include "gpu/tensor.h"
#include "op/attn/kv_tile_rows.h"
#include "op/kv_append/decode_append_cuda.h"
#include "op/kv_append/exact_rows.h"
#include "op/kv_append/rotate_warp.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kWarps = 4;

template <int kPer>
__device__ void norm_head(const float* weight, float eps, int lane, float (&x)[kPer]) {
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) sum += double(x[j]) * x[j];
  const double factor = 1.0 / sqrt(gpu::warp_sum(sum) / (32 * kPer) + eps);
#pragma unroll
  for (int j = 0; j < kPer; ++j) x[j] = float(x[j] * factor * weight[lane + 32 * j]);
}

/// RoPE through shared memory of the warp: pairs may be anywhere in the row.
template <int kPer>
__device__ void turn(const DecodeAppend& a, int seq, int lane, float* row, float (&x)[kPer]) {
  if (a.n_pairs == 0) return;
#pragma unroll
  for (int j = 0; j < kPer; ++j) row[lane + 32 * j] = x[j];
  __syncwarp();
  for (int pair = lane; pair < a.n_pairs; pair += 32) {
    float& first = row[a.rope_halves ? pair : 2 * pair];
    float& second = row[a.rope_halves ? pair + a.n_pairs : 2 * pair + 1];
    const float c = a.cosines[int64_t(seq) * a.n_pairs + pair], s = a.sines[int64_t(seq) * a.n_pairs + pair];
    const float turned = first * c - second * s;
    second = first * s + second * c;
    first = turned;
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kPer; ++j) x[j] = row[lane + 32 * j];
}

/// The code of a value and the scale it is under, as the encoders of int8 (rule absmax) and q4_0 have them.
struct Scaled {
  float inverse;
  uint16_t scale;
};
__device__ Scaled int8_scale(float top) {
  const float scale = top / 127.0f;
  return {scale > 1e-38f ? 1.0f / scale : 0.0f, f32_to_f16(scale)};
}
__device__ int int8_code(float x, float inverse) { return int(fminf(fmaxf(roundf(x * inverse), -127.0f), 127.0f)); }

/// Writes a row in cache space to place `p` of a tile. All lanes; lane has channels lane + 32 j.
template <int kPer>
__device__ void write_row(TileKind kind, bool is_k, int p, int lane, const float (&x)[kPer], std::byte* tile) {
  const TileShape shape(kind, 32 * kPer);
  const auto code_byte = [&](int j) { return tile + code_at(shape, tile_place(is_k, p, lane + 32 * j)); };
  if (kind == TileKind::f16 || kind == TileKind::bf16) {
#pragma unroll
    for (int j = 0; j < kPer; ++j)
      tile_rows::store16(code_byte(j), kind == TileKind::f16 ? f32_to_f16(x[j]) : f32_to_bf16(x[j]));
  } else if (kind == TileKind::int8_row) {
    float top = 0;
#pragma unroll
    for (int j = 0; j < kPer; ++j) top = fmaxf(top, fabsf(x[j]));
    const Scaled s = int8_scale(gpu::warp_max(top));
#pragma unroll
    for (int j = 0; j < kPer; ++j) *code_byte(j) = std::byte(int8_code(x[j], s.inverse));
    if (lane == 0) tile_rows::store16(tile + shape.scale_at(0, p), s.scale);
  } else if (kind == TileKind::int8_blocks) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {  // a block is one element of every lane
      const Scaled s = int8_scale(gpu::warp_max(fabsf(x[j])));
      *code_byte(j) = std::byte(int8_code(x[j], s.inverse));
      if (lane == 0) tile_rows::store16(tile + shape.scale_at(j, p), s.scale);
    }
  } else if (kind == TileKind::q4) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      // The first of the values of largest magnitude.
      const float top = gpu::warp_max(fabsf(x[j]));
      const unsigned at_top = __ballot_sync(gpu::kAllLanes, fabsf(x[j]) == top);
      const float found = __shfl_sync(gpu::kAllLanes, x[j], __ffs(int(at_top)) - 1), extreme = top > 0 ? found : 0.0f;
      const float scale = extreme / -8.0f, inverse = fabsf(scale) > 1e-38f ? 1.0f / scale : 0.0f;
      const int code = min(max(int(x[j] * inverse + 8.5f), 0), 15);
      const uint32_t nibble = uint32_t(code) ^ 8u;
      if (lane == 0) tile_rows::store16(tile + shape.scale_at(j, p), f32_to_f16(scale));
      const TilePlace at = tile_place(is_k, p, lane + 32 * j);
      std::byte* byte = tile + shape.word_at(at.lane, at.group) + at.i % 4;
      if (is_k) {  // bytes hold channels i and i + 4 of this row
        const uint32_t upper = __shfl_down_sync(gpu::kAllLanes, nibble, 4);
        if (at.i < 4) *byte = std::byte(nibble | upper << 4);
      } else {  // the other nibble is another position's
        const int shift = at.i / 4 * 4;
        *byte = std::byte((uint32_t(*byte) & ~(15u << shift)) | nibble << shift);
      }
    }
  }
}

__device__ float saturate_bf16(float value, int& count) {
  if (fabsf(value) <= KvBf16::kMax) return value;
  ++count;
  return isnan(value) ? 0.0f : copysignf(KvBf16::kMax, value);
}
template <int kPer>
__device__ int saturate(TileKind kind, float (&x)[kPer]) {
  int saturated = 0;
  if (kind != TileKind::bf16) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = saturate_f16(x[j], saturated);
  } else {
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = saturate_bf16(x[j], saturated);
  }
  return saturated;
}

/// A warp a head: first the queries', then K's, then V's.
template <int kPer>
__global__ void __launch_bounds__(32 * kWarps) append_kernel(DecodeAppend a) {
  constexpr int kDim = 32 * kPer;
  __shared__ float room[kWarps][kDim];
  gpu::wait_for_previous_grid();
  gpu::let_next_grid_start();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int n_rows = a.n_heads + 2 * a.n_kv_heads, row = int(blockIdx.x) * kWarps + warp, seq = int(blockIdx.y);
  if (row >= n_rows) return;
  const bool is_q = row < a.n_heads, is_k = !is_q && row < a.n_heads + a.n_kv_heads;
  const int head = is_q ? row : is_k ? row - a.n_heads : row - a.n_heads - a.n_kv_heads;
  const float* from = is_q ? a.q + seq * a.q_pitch : is_k ? a.k + seq * a.k_pitch : a.v + seq * a.v_pitch;
  float x[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) x[j] = from[int64_t(head) * kDim + lane + 32 * j];
  const float* norm = is_q ? a.q_norm : is_k ? a.k_norm : nullptr;
  if (norm) norm_head<kPer>(norm, a.norm_eps, lane, x);
  if (is_q || is_k) turn<kPer>(a, seq, lane, room[warp], x);
  if (is_q) {
    float* to = a.q_out + (int64_t(seq) * a.n_heads + head) * kDim;
#pragma unroll
    for (int j = 0; j < kPer; ++j) to[lane + 32 * j] = x[j];
    return;
  }

  const AppendSide& side = is_k ? a.k_side : a.v_side;
  const int position = a.n_past[seq];
  const int64_t seq_head = int64_t(seq) * a.n_kv_heads + head;
  rotate_row(side.rotation, true, lane, x);
  if (side.centre)
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] += -1.0f * side.centre[seq_head * kDim + lane + 32 * j];

  // As the host: where anything is kept exact all rows are rounded so, coded ones then from the rounded values.
  int saturated = 0;
  const bool sink = position < side.exact.n_sinks;
  if (side.exact.ring_rows > 0 || sink) {
    const ExactTile t = exact_tile(side.exact, seq_head, position, kDim);
    saturated += saturate<kPer>(t.kind, x);
    write_row<kPer>(t.kind, is_k, t.position, lane, x, t.tile);
  }
  if (side.exact.ring_rows == 0) {
    if (side.exact.n_sinks > 0) {
      if (!sink) saturated += saturate<kPer>(TileKind::f16, x);
#pragma unroll
      for (int j = 0; j < kPer; ++j) x[j] = f16_to_f32(f32_to_f16(x[j]));
    }
    saturated += saturate<kPer>(side.kind, x);
    write_row<kPer>(side.kind, is_k, position % kTilePositions, lane, x,
                    coded_tile(side.coded, side.kind, seq_head, position, kDim));
  }
  saturated = gpu::warp_sum(saturated);
  if (lane == 0 && saturated > 0) atomicAdd(side.saturated, (unsigned long long)(saturated));
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
__device__ void encode_quarter(QuarterRoom<kPer>& room, TileKind kind, bool is_k, KvScale rule, const float* metric,
                               int c, std::byte* tile, unsigned long long* total, Value value) {
  constexpr int kDim = 32 * kPer;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, p = row_position(c, warp);
  auto& values = room.values;
  auto& codes = room.codes;
  auto& words = room.words;
  for (int d = lane; d < kDim; d += 32) values[warp][0][d] = value(p, d);
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
      if (row == warp) write_row<kPer>(kind, is_k, p, lane, x, tile);
      __syncthreads();
    }
  }
  saturated = gpu::warp_sum(saturated);
  if (lane == 0 && saturated > 0) atomicAdd(total, (unsigned long long)(saturated));
}

/// Blocks: (quarter of the tile, kv head and side, sequence).
template <int kPer>
__global__ void __launch_bounds__(32 * kRows) leaving_kernel(DecodeAppend a) {
  constexpr int kDim = 32 * kPer;
  __shared__ QuarterRoom<kPer> room;
  gpu::wait_for_previous_grid();
  const bool is_k = int(blockIdx.y) < a.n_kv_heads;
  const AppendSide& side = is_k ? a.k_side : a.v_side;
  const int head = int(blockIdx.y) % a.n_kv_heads, seq = int(blockIdx.z);
  const int n_past = a.n_past[seq], end = side.retention.coded_end(n_past + 1), first = end - kTilePositions;
  if (side.exact.ring_rows == 0 || side.retention.coded_end(n_past) == end) return;
  const int64_t seq_head = int64_t(seq) * a.n_kv_heads + head;
  encode_quarter<kPer>(room, side.kind, is_k, side.scale,
                       side.metric ? side.metric + int64_t(head) * kDim * kDim : nullptr, int(blockIdx.x),
                       coded_tile(side.coded, side.kind, seq_head, first, kDim), side.saturated,
                       [&](int p, int d) { return read_exact(side.exact, seq_head, first + p, kDim, d); });
}

/// Blocks: (quarter of a tile, (sequence, kv head)).
template <int kPer>
__global__ void __launch_bounds__(32 * kRows)
    whole_tiles_kernel(int n_kv_heads, TileKind kind, KvScale rule, const float* metric, KvFloatRows from, int first,
                       KvCodedStore coded, unsigned long long* total) {
  constexpr int kDim = 32 * kPer;
  __shared__ QuarterRoom<kPer> room;
  const int64_t seq_head = blockIdx.y;
  const int position = first + int(blockIdx.x) / 4 * kTilePositions;
  const float* const rows = from.rows + (seq_head * from.count + position - from.first) * kDim;
  encode_quarter<kPer>(room, kind, coded.is_k, rule, metric ? metric + seq_head % n_kv_heads * kDim * kDim : nullptr,
                       int(blockIdx.x) % 4, coded_tile(coded, kind, seq_head, position, kDim), total,
                       [&](int p, int d) { return rows[int64_t(p) * kDim + d]; });
}

__global__ void step_rope_kernel(int n_seq, const int32_t* n_past, int n_pairs, const double* frequency,
                                 float magnitude, float* cosines, float* sines) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n_seq * n_pairs) return;
  const double angle = double(n_past[i / n_pairs]) * frequency[i % n_pairs];
  cosines[i] = float(cos(angle)) * magnitude;
  sines[i] = float(sin(angle)) * magnitude;
}

__global__ void next_position_kernel(int n_seq, int32_t* n_past, int32_t* n_keys) {
  const int i = int(threadIdx.x);
  if (i >= n_seq) return;
  const int next = n_past[i] + 1;
  n_past[i] = next;
  n_keys[i] = next + 1;
}

}  // namespace

const char* decode_append_unsupported(TileKind kind, KvScale scale, const KvRetention& retention) {
  if (kind == TileKind::rotor3 || kind == TileKind::rotor4)
    return retention.window > 0 ? nullptr : "rotor rows without a window";
  if (scale == KvScale::lsq) return "scales by least squares";
  return nullptr;
}

void append_decode(gpu::StreamHandle stream, const DecodeAppend& a) {
  const int n_rows = a.n_heads + 2 * a.n_kv_heads;
  const auto kernel = a.head_dim == 64 ? append_kernel<2> : a.head_dim == 128 ? append_kernel<4> : append_kernel<8>;
  gpu::launch("append", kernel,
              {dim3(unsigned(gpu::ceil_div(n_rows, kWarps)), unsigned(a.n_seq)), 32 * kWarps, 0, stream, a.overlap}, a);
}

void encode_leaving(gpu::StreamHandle stream, const DecodeAppend& a) {
  const auto kernel = a.head_dim == 64 ? leaving_kernel<2> : a.head_dim == 128 ? leaving_kernel<4> : leaving_kernel<8>;
  gpu::launch("encode of a leaving tile", kernel,
              {dim3(4, unsigned(2 * a.n_kv_heads), unsigned(a.n_seq)), 32 * kRows, 0, stream, a.overlap}, a);
}

void encode_whole_tiles(gpu::StreamHandle stream, TileKind kind, KvScale rule, const float* metric, int n_seq,
                        int n_kv_heads, int head_dim, const KvFloatRows& from, int first, int count,
                        const KvCodedStore& coded, unsigned long long* saturated) {
  if (first % kTilePositions != 0 || count % kTilePositions != 0)
    throw Error(ErrorKind::failure,
                "whole tiles from " + std::to_string(first) + ", " + std::to_string(count) + " rows");
  if (count == 0) return;
  const auto kernel = head_dim == 64    ? whole_tiles_kernel<2>
                      : head_dim == 128 ? whole_tiles_kernel<4>
                                        : whole_tiles_kernel<8>;
  gpu::launch("encode of tiles", kernel,
              {dim3(unsigned(4 * (count / kTilePositions)), unsigned(n_seq * n_kv_heads)), 32 * kRows, 0, stream},
              n_kv_heads, kind, rule, metric, from, first, coded, saturated);
}

void device_step_rope(gpu::StreamHandle stream, int n_seq, const int32_t* n_past, int n_pairs, const double* frequency,
                      float magnitude, float* cosines, float* sines) {
  if (n_pairs == 0) return;
  gpu::launch("step rope", step_rope_kernel, {unsigned(gpu::ceil_div(int64_t(n_seq) * n_pairs, 128)), 128, 0, stream},
              n_seq, n_past, n_pairs, frequency, magnitude, cosines, sines);
}

void device_next_position(gpu::StreamHandle stream, int n_seq, int32_t* n_past, int32_t* n_keys) {
  if (n_seq > 1024) throw Error(ErrorKind::failure, "next position of " + std::to_string(n_seq) + " sequences");
  gpu::launch("next position", next_position_kernel, {1, unsigned((n_seq + 31) / 32 * 32), 0, stream}, n_seq, n_past,
              n_keys);
}

}  // namespace ridge
