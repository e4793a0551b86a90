// Rows of a cache on the device, one thread a row: in the ring, among the sinks and coded, in the order of tensor cores
// or as their format defines them. For the kernels that must leave the host's bits (*_exact.cu: compiled without fused
// multiply-add).
#pragma once

#include <type_traits>

#include "format/kv_types.h"
#include "gpu/launch.h"
#include "op/cache/append_cuda.h"
#include "op/cache/step_rows.h"
#include "op/cache/tile_rows.h"
#include "op/cache/tiles.h"

namespace ridge {

/// Row code of every format, one function each: the stack of a kernel holds the largest frame, not all of them.
template <class F>
__device__ __noinline__ int encode_as(const float* row, int dim, const KvCoding& coding, std::byte* to) {
  return F::encode(row, dim, coding, to);
}
template <class F>
__device__ __noinline__ void decode_as(const std::byte* from, int dim, const KvCoding& coding, float* row) {
  F::decode(from, dim, coding, row);
}
template <class... F>
__device__ inline int encode_row(int format, KvTypes<F...>, const float* row, int dim, const KvCoding& coding,
                                 std::byte* to) {
  int i = 0, saturated = 0;
  ((i++ == format ? void(saturated = encode_as<F>(row, dim, coding, to)) : void()), ...);
  return saturated;
}
template <class... F>
__device__ inline void decode_row(int format, KvTypes<F...>, const std::byte* from, int dim, const KvCoding& coding,
                                  float* row) {
  int i = 0;
  ((i++ == format ? decode_as<F>(from, dim, coding, row) : void()), ...);
}
/// The rule of the encoder of exact rows: the format's own.
template <class... F>
__device__ inline KvScale own_scale(int format, KvTypes<F...>) {
  int i = 0;
  KvScale scale = KvScale::none;
  ((scale = i++ == format ? F::kPolicy.scale : scale), ...);
  return scale;
}

/// Numbers of the formats of exact rows.
template <class Wanted, class... F>
constexpr int number_of(KvTypes<F...>) {
  int i = 0, found = -1;
  ((found = std::is_same_v<Wanted, F> ? i : found, ++i), ...);
  return found;
}
inline constexpr int kNumberOfF16 = number_of<KvF16>(KvFormatTypes()), kNumberOfI8r = number_of<KvI8r>(KvFormatTypes());

/// The format that the row of a position has while it is exact. Rows without a place in a ring are coded from f16.
__device__ __forceinline__ int exact_format(const KvTiles& t, int position) {
  return position < t.n_sinks || t.ring_tiles == 0 ? kNumberOfF16 : t.recent;
}

/// The tile with the exact row of a position in the order of tensor cores, and the row's place in it.
struct ExactTile {
  std::byte* tile;
  TileKind kind;
  int position;
};
__device__ __forceinline__ ExactTile exact_tile(const KvTiles& t, const StepRow& of, int head, int position) {
  if (position < t.n_sinks) return {t.sink_tile(of.slot, head), TileKind::f16, position};
  return {t.ring_tile(of.ring, head, position / kTilePositions), t.recent_kind, position % kTilePositions};
}
/// Byte of a code of 8 or 16 bits.
__device__ __forceinline__ int code_at(const TileShape& shape, TilePlace at) {
  return shape.bits == 16 ? shape.word_at(at.lane, 4 * at.group + at.i / 2) + 2 * (at.i % 2)
                          : shape.word_at(at.lane, 2 * at.group + at.i / 4) + at.i % 4;
}
/// Element d of an exact row in the order of tensor cores.
__device__ __forceinline__ float read_exact(const KvTiles& t, const StepRow& of, int head, int position, int d) {
  const ExactTile at = exact_tile(t, of, head, position);
  const TileShape shape(at.kind, t.head_dim);
  const std::byte* code = at.tile + code_at(shape, tile_place(t.side, at.position, d));
  if (at.kind == TileKind::f16) return f16_to_f32(tile_rows::load16(code));
  return float(int8_t(*code)) * f16_to_f32(tile_rows::load16(at.tile + shape.scale_at(0, at.position)));
}

/// Where the exact row of a position is, in tiles of rows.
__device__ __forceinline__ std::byte* exact_row(const KvTiles& t, const StepRow& of, int head, int position) {
  return position < t.n_sinks ? t.sink_row(of.slot, head, position) : t.ring_row(of.ring, head, position);
}

/// A row of tiles of rows, by one thread.
__device__ inline void read_exact_row(const KvTiles& t, const StepRow& of, int head, int position, float* row) {
  decode_row(exact_format(t, position), KvFormatTypes(), exact_row(t, of, head, position), t.head_dim, {}, row);
}
/// Rounds it to its format and writes it.
__device__ inline void write_exact_row(const KvTiles& t, const StepRow& of, int head, int position, const float* row) {
  const int format = exact_format(t, position);
  encode_row(format, KvFormatTypes(), row, t.head_dim, {.scale = own_scale(format, KvFormatTypes())},
             exact_row(t, of, head, position));
}

/// Both of a row in the order of tensor cores, by a warp with the row in memory that it shares.
__device__ inline void read_exact_row(const KvTiles& t, const StepRow& of, int head, int position, int lane,
                                      float* row) {
  for (int d = lane; d < t.head_dim; d += 32) row[d] = read_exact(t, of, head, position, d);
}
__device__ inline void write_exact_row(const KvTiles& t, const StepRow& of, int head, int position, int lane,
                                       const float* row) {
  const ExactTile to = exact_tile(t, of, head, position);
  const TileShape shape(to.kind, t.head_dim);
  float inverse = 0;
  int ignored = 0;
  if (to.kind == TileKind::int8_row) {  // as encode_int8 with rule absmax
    float top = 0;
    for (int d = lane; d < t.head_dim; d += 32) top = fmaxf(top, fabsf(saturate_f16(row[d], ignored)));
    const float scale = gpu::warp_max(top) / 127.0f;
    inverse = scale > 1e-38f ? 1.0f / scale : 0.0f;
    if (lane == 0) tile_rows::store16(to.tile + shape.scale_at(0, to.position), f32_to_f16(scale));
  }
  for (int d = lane; d < t.head_dim; d += 32) {
    std::byte* code = to.tile + code_at(shape, tile_place(t.side, to.position, d));
    const float x = saturate_f16(row[d], ignored);
    if (to.kind == TileKind::f16) tile_rows::store16(code, f32_to_f16(x));
    else *code = std::byte(int8_t(fminf(fmaxf(roundf(x * inverse), -127.0f), 127.0f)));
  }
}

__device__ __forceinline__ void add_counts(PageCounts& counts, float norm2, float error2) {
  atomicAdd(&counts.norm2, norm2);
  atomicAdd(&counts.error2, error2);
}
__device__ __forceinline__ void add_saturated(unsigned long long* total, int saturated) {
  if (saturated > 0) atomicAdd(total, (unsigned long long)(saturated));
}

}  // namespace ridge
