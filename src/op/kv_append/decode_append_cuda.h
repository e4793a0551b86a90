// The new token of every sequence on its way into the cache, one launch a layer: Q and K normed and turned to their
// position, K and V taken into cache space, rounded or coded, and written to their tiles. Positions are read on the
// device, so that a captured launch serves every step. The numbers are those of model/kv_cache.h, bit for bit, given
// equal rows after RoPE.
#pragma once

#include "op/attn/retention.h"
#include "op/kv_append/kv_rows_cuda.h"

namespace ridge {

/// One side (K or V) of one layer in tiles.
struct AppendSide {
  TileKind kind = TileKind::f16;
  KvScale scale = KvScale::none;  ///< rule of the format's encoder
  KvRetention retention;
  KvExactStore exact;  ///< tiled
  KvCodedStore coded;  ///< tiled
  RotationView rotation;
  const float* centre = nullptr;  ///< [n_seq, n_kv_heads, head_dim] or null
  const float* metric = nullptr;  ///< [n_kv_heads, head_dim, head_dim] where rounding is weighted
  unsigned long long* saturated = nullptr;
};

struct DecodeAppend {
  int n_seq = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;                 ///< 64, 128 or 256
  const int32_t* n_past = nullptr;  ///< [n_seq]: position of the new token
  /// Rows of one sequence are `pitch` floats behind those of the one before: q [n_heads, head_dim], k and v
  /// [n_kv_heads, head_dim].
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t q_pitch = 0, k_pitch = 0, v_pitch = 0;
  const float* q_norm = nullptr;  ///< [head_dim]: RMS norm of every head; null without
  const float* k_norm = nullptr;
  float norm_eps = 0;
  const float* cosines = nullptr;  ///< [n_seq, n_pairs] of device_step_rope()
  const float* sines = nullptr;
  int n_pairs = 0;
  bool rope_halves = false;
  float* q_out = nullptr;  ///< [n_seq, n_heads, head_dim]
  AppendSide k_side, v_side;
  bool overlap = false;
};

/// Null when append_decode() can write such a side, else why not: formats whose encoder looks at the whole row twice
/// are coded when a tile leaves the window, by encode_leaving(), and need a window for it.
const char* decode_append_unsupported(TileKind kind, KvScale scale, const KvRetention& retention);

/// Queues the launch. With `overlap` everything but q, k, v and the tiles is read before the grid before has ended: a
/// plain launch must lie between this one and whatever wrote n_past, cosines and sines. The centre is zero until it is
/// set, which the position that completes calibration does: that one is not for here.
void append_decode(gpu::StreamHandle stream, const DecodeAppend& a);

/// Tiles of any number of layers that leave their windows when the tokens at n_past come.
struct LeavingTiles {
  int n_seq = 0;
  int n_kv_heads = 0;
  int head_dim = 0;                   ///< 64, 128 or 256
  int n_sides = 0;                    ///< K and V of all layers
  const AppendSide* sides = nullptr;  ///< [n_sides] in device memory
  const int32_t* n_past = nullptr;    ///< [n_seq]
  bool overlap = false;
};

/// Codes them, for the sequences and sides that have one: one launch a step, in front of the first layer, because what
/// leaves has been in the cache for a window's time. Needed only in steps where retention.coded_end(n_past + 1) >
/// coded_end(n_past) for some sequence and side.
void encode_leaving(gpu::StreamHandle stream, const LeavingTiles& a);

/// Codes positions [first, first + count) of `from`, whole tiles of 32, with any kind: the bits of device_encode(), a
/// warp a row.
void encode_whole_tiles(gpu::StreamHandle stream, TileKind kind, KvScale rule, const float* metric, int n_seq,
                        int n_kv_heads, int head_dim, const KvFloatRows& from, int first, int count,
                        const KvCodedStore& coded, unsigned long long* saturated);

/// Angles of the positions: cosines and sines [n_seq, n_pairs].
void device_step_rope(gpu::StreamHandle stream, int n_seq, const int32_t* n_past, int n_pairs, const double* frequency,
                      float magnitude, float* cosines, float* sines);
/// n_past[i] += 1 of n_seq sequences; n_keys[i] = n_past[i] + 1 for the step that follows.
void device_next_position(gpu::StreamHandle stream, int n_seq, int32_t* n_past, int32_t* n_keys);

}  // namespace ridge
