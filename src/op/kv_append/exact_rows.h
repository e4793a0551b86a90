// Where exact and coded rows are on the device, for the kernels that write them (*_exact.cu: compiled without fused
// multiply-add, because these must be the host's bits).
#pragma once

#include "gpu/launch.h"
#include "op/attn/kv_tile_rows.h"
#include "op/kv_append/kv_rows_cuda.h"

namespace ridge {

__device__ inline float rounded_f16(float x, int& saturated) {
  return f16_to_f32(f32_to_f16(saturate_f16(x, saturated)));
}

/// What the exact row of a position reads as.
__device__ inline int round_to_exact(const KvExactStore& e, int position, int dim, float* row) {
  int saturated = 0;
  if (position < e.n_sinks || e.ring_rows == 0 || !e.recent_i8r) {
    for (int d = 0; d < dim; ++d) row[d] = rounded_f16(row[d], saturated);
    return saturated;
  }
  std::byte coded[kMaxDeviceHeadDim + 2];
  saturated = KvI8r::encode(row, dim, {.scale = KvI8r::kPolicy.scale}, coded);
  KvI8r::decode(coded, dim, {}, row);
  return saturated;
}

/// The tile with the exact row of (seq, head, position), and the row's place in it.
struct ExactTile {
  std::byte* tile;
  TileKind kind;
  int position;
};
__device__ inline ExactTile exact_tile(const KvExactStore& e, int64_t seq_head, int position, int dim) {
  if (position < e.n_sinks)
    return {e.sink_tiles + seq_head * TileShape(TileKind::f16, dim).bytes, TileKind::f16, position};
  const TileKind kind = e.recent_i8r ? TileKind::int8_row : TileKind::f16;
  const int64_t slot = position / kTilePositions % e.ring_tiles;
  return {e.recent_tiles + (seq_head * e.ring_tiles + slot) * TileShape(kind, dim).bytes, kind,
          position % kTilePositions};
}
/// Byte of a code of 8 or 16 bits.
__device__ inline int code_at(const TileShape& shape, TilePlace at) {
  return shape.bits == 16 ? shape.word_at(at.lane, 4 * at.group + at.i / 2) + 2 * (at.i % 2)
                          : shape.word_at(at.lane, 2 * at.group + at.i / 4) + at.i % 4;
}

/// Element d of the exact row of (seq, head, position).
__device__ inline int64_t sink_at(const KvExactStore& e, int64_t seq_head, int position, int dim) {
  return (seq_head * e.n_sinks + position) * dim;
}
__device__ inline int64_t ring_at(const KvExactStore& e, int64_t seq_head, int position, int dim) {
  return (seq_head * e.ring_rows + position % e.ring_rows) * dim;
}
__device__ inline float read_exact(const KvExactStore& e, int64_t seq_head, int position, int dim, int d) {
  if (e.tiled) {
    const ExactTile t = exact_tile(e, seq_head, position, dim);
    const TileShape shape(t.kind, dim);
    const std::byte* code = t.tile + code_at(shape, tile_place(e.is_k, t.position, d));
    if (t.kind == TileKind::f16) return f16_to_f32(tile_rows::load16(code));
    return float(int8_t(*code)) * f16_to_f32(tile_rows::load16(t.tile + shape.scale_at(0, t.position)));
  }
  if (position < e.n_sinks) return f16_to_f32(e.sinks[sink_at(e, seq_head, position, dim) + d]);
  return e.ring[ring_at(e, seq_head, position, dim) + d];
}
/// Elements first, first + step, .. of a row that is rounded already; coding it again changes nothing.
__device__ inline void write_exact(const KvExactStore& e, int64_t seq_head, int position, int dim, const float* row,
                                   int first, int step) {
  int ignored = 0;
  if (e.tiled) {
    const ExactTile t = exact_tile(e, seq_head, position, dim);
    const TileShape shape(t.kind, dim);
    float inverse = 0;
    if (t.kind == TileKind::int8_row) {  // as encode_int8 with rule absmax
      float top = 0;
      for (int d = 0; d < dim; ++d) top = fmaxf(top, fabsf(row[d]));
      const float scale = top / 127.0f;
      inverse = scale > 1e-38f ? 1.0f / scale : 0.0f;
      if (first == 0) tile_rows::store16(t.tile + shape.scale_at(0, t.position), f32_to_f16(scale));
    }
    for (int d = first; d < dim; d += step) {
      std::byte* code = t.tile + code_at(shape, tile_place(e.is_k, t.position, d));
      if (t.kind == TileKind::f16) tile_rows::store16(code, f32_to_f16(saturate_f16(row[d], ignored)));
      else *code = std::byte(int8_t(fminf(fmaxf(roundf(row[d] * inverse), -127.0f), 127.0f)));
    }
    return;
  }
  for (int d = first; d < dim; d += step) {
    if (position < e.n_sinks)
      e.sinks[sink_at(e, seq_head, position, dim) + d] = f32_to_f16(saturate_f16(row[d], ignored));
    else e.ring[ring_at(e, seq_head, position, dim) + d] = row[d];
  }
}

/// The tile with the coded row of (seq, head, position).
__device__ inline std::byte* coded_tile(const KvCodedStore& coded, TileKind kind, int64_t seq_head, int position,
                                        int dim) {
  const int64_t tiles_of_head = (coded.n_ctx + kTilePositions - 1) / kTilePositions;
  return coded.rows + (seq_head * tiles_of_head + position / kTilePositions) * TileShape(kind, dim).bytes;
}

}  // namespace ridge
