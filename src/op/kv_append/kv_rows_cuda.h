// The life of cached rows on the device: into cache space, rounded, coded, kept exact, decoded, and out of cache space.
// The rules are model/kv_cache.h's; every step gives the bits the host gives (format code is the same, compiled without
// fused multiply-add). All pointers are device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/kv_format.h"
#include "gpu/device.h"
#include "op/attn/kv_tile.h"
#include "op/kv_append/rotate.h"

namespace ridge {

/// Largest head_dim the row kernels hold in shared memory.
inline constexpr int kMaxDeviceHeadDim = 256;

/// Kind of the tiles that hold a format; false when it has none.
bool find_tile_kind(int format, TileKind& kind);
/// Row `position` of a tile (host memory) as bytes of the format.
void read_tile_row(int format, const std::byte* tile, bool is_k, int position, int head_dim, std::byte* row);

/// Rows being appended: f32 [n_seq, n_new, n_kv_heads, head_dim] at positions n_past .. n_past + n_new - 1.
struct KvRowBatch {
  int n_seq = 0;
  int n_new = 0;
  int n_past = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  float* rows = nullptr;
};

/// Exact rows of one side of one layer: f16 sinks [n_seq, n_kv_heads, n_sinks, head_dim], and a ring
/// [n_seq, n_kv_heads, ring_rows, head_dim] with slot = position % ring_rows. The ring holds floats that are rounded to
/// the recent format already, the values the host's ring decodes to.
struct KvExactStore {
  int n_sinks = 0;
  int ring_rows = 0;
  bool recent_i8r = false;  ///< rows of the ring are rounded to i8r, else to f16
  uint16_t* sinks = nullptr;
  float* ring = nullptr;
  /// Held in tiles instead (op/attn/kv_tile.h), as a TileSide has them: `sinks` and `ring` are null.
  bool tiled = false;
  bool is_k = false;
  int ring_tiles = 0;
  std::byte* sink_tiles = nullptr;
  std::byte* recent_tiles = nullptr;
};

/// What coding rows needs: KvCoding of every (sequence, kv head).
struct KvDeviceCoding {
  KvScale scale = KvScale::none;
  const float* head_scale = nullptr;  ///< [n_seq, n_kv_heads], where the format has head_scale
  const float* metric = nullptr;      ///< [n_kv_heads, head_dim, head_dim] in cache space, where rounding is weighted
};

/// Rows in a format: [n_seq, n_kv_heads, n_ctx] of row_bytes, or the same positions in tiles,
/// [n_seq, n_kv_heads, n_ctx / 32 rounded up].
struct KvCodedStore {
  int n_ctx = 0;
  int64_t row_bytes = 0;
  std::byte* rows = nullptr;
  bool tiled = false;
  bool is_k = false;
};

/// f32 rows of consecutive positions: [n_seq, n_kv_heads, count, head_dim] from position `first`.
struct KvFloatRows {
  int first = 0;
  int count = 0;
  float* rows = nullptr;
};

/// What to do to rows on their way into cache space, in this order.
struct ToSpace {
  const RotationView* rotate = nullptr;  ///< its table in device memory
  int round_before = 0;                  ///< rows below this position are rounded as exact rows here, uncounted
  const float* centre = nullptr;         ///< [n_seq, n_kv_heads, head_dim] to subtract
  bool round = false;                    ///< as exact rows, counting what was clamped
};
void device_to_space(gpu::StreamHandle stream, const KvRowBatch& batch, const KvExactStore& exact, const ToSpace& steps,
                     unsigned long long* saturated);

/// From positions [first, last) of the batch or the exact store: centre = mean, and moves the exact rows held below
/// min(n_past, last) by it; head_scale = root mean square of what is left. Either may be null.
void device_calibrate(gpu::StreamHandle stream, const KvRowBatch& batch, const KvExactStore& exact, int first, int last,
                      float* centre, float* head_scale);

/// Fills `out` with exact rows, from the batch or the exact store.
void device_gather_exact(gpu::StreamHandle stream, const KvRowBatch& batch, const KvExactStore& exact,
                         const KvFloatRows& out);

/// The newest rows of the batch into sinks and ring.
void device_keep_exact(gpu::StreamHandle stream, const KvRowBatch& batch, const KvExactStore& exact);

/// Codes positions [first, first + count) of `from`, which has them, with format number `format` of KvFormatTypes.
void device_encode(gpu::StreamHandle stream, int format, int n_seq, int n_kv_heads, int head_dim,
                   const KvFloatRows& from, int first, int count, const KvDeviceCoding& coding,
                   const KvCodedStore& coded, unsigned long long* saturated);
/// Codes all rows of a batch.
void device_encode(gpu::StreamHandle stream, int format, const KvRowBatch& batch, const KvDeviceCoding& coding,
                   const KvCodedStore& coded, unsigned long long* saturated);

/// Decodes positions [0, out.count) to f32; sinks come from the exact store.
void device_decode(gpu::StreamHandle stream, int format, int n_seq, int n_kv_heads, int head_dim,
                   const KvDeviceCoding& coding, const KvCodedStore& coded, const KvExactStore& exact,
                   const KvFloatRows& out);

/// Rotates n_rows rows of head_dim.
void device_rotate(gpu::StreamHandle stream, int64_t n_rows, const RotationView& rotation, float* rows);

/// Attention output [n_seq, n_tokens, n_heads, head_dim] out of cache space: centre (may be null) added back, then
/// rotated back.
void device_restore(gpu::StreamHandle stream, int n_seq, int n_tokens, int n_heads, int n_kv_heads,
                    const RotationView& rotation, const float* centre, float* rows);

/// Fills n_tiles tiles with random codes that are valid, finite and about as large as those of real rows.
void device_fill_tiles(gpu::StreamHandle stream, TileKind kind, int head_dim, int64_t n_tiles, uint64_t seed,
                       std::byte* tiles);

}  // namespace ridge
