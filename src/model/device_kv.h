// The KV cache of model/kv_cache.h on the device, for any number of equal sequences that advance together.
#pragma once

#include "gpu/device.h"
#include "model/kv_cache.h"
#include "op/attn/attn_cuda.h"
#include "op/attn/decode_cuda.h"
#include "op/kv_append/decode_append_cuda.h"
#include "op/kv_append/kv_rows_cuda.h"

namespace ridge {

/// Most tokens a session on a device can forget: exact rows stay for so many tokens after they were coded.
inline constexpr int kMaxRewind = kTilePositions;

/// Rows as floats while a layer is worked on. One for K and one for V serve all layers in turn.
struct DeviceKvScratch {
  gpu::Buffer coded;  // [n_seq, n_kv_heads, coded_end(n), head_dim], sinks exact
  gpu::Buffer exact;  // [n_seq, n_kv_heads, n - coded_end(n_past), head_dim]
};

/// One side (K or V) of one layer: KvStore's semantics, bit for bit. Rows are in tiles (op/attn/kv_tile.h) where format
/// and head_dim allow it, else in the format's own layout with the window as floats.
class DeviceKvStore {
 public:
  /// `metric` as KvStore takes it. The window is in f16 or i8r (check_device_kv).
  DeviceKvStore(gpu::StreamHandle stream, const KvSideConfig& config, bool is_k, int layer, int n_kv_heads,
                int head_dim, int n_ctx, int n_seq, std::span<const float> metric = {});

  /// Adds rows [n_seq, n_new, n_kv_heads * head_dim] at positions n_past, n_past + 1, ... of the first n_seq sequences,
  /// and returns the side as attention reads it, in `scratch`. The rows are left in cache space.
  DeviceKvSide append(gpu::StreamHandle stream, int n_seq, int n_past, int n_new, float* rows,
                      DeviceKvScratch& scratch);
  /// The same without the floats: what attention over tiles needs. Only when tiled().
  void append_tiles(gpu::StreamHandle stream, int n_seq, int n_past, int n_new, float* rows, DeviceKvScratch& scratch);
  bool tiled() const { return tiled_; }
  /// Whether append_decode() may add the next position: not the one that completes calibration.
  bool steps_from(int n_past) const { return calibrated_ || n_past + 1 != layout_.retention.calibration; }
  /// The side as append_decode() writes it where steps_from() says so: until the centre is set it is zero.
  AppendSide append_side() const;
  /// The side as attention over tiles reads it, at any length.
  TileSide tile_side() const;
  /// Q rows into cache space.
  void rotate_queries(gpu::StreamHandle stream, int64_t n_rows, float* q) const;
  /// Attention output [n_seq, n_tokens, n_heads * head_dim] out of cache space.
  void restore_output(gpu::StreamHandle stream, int n_seq, int n_tokens, int n_heads, float* out) const;

  void reset(gpu::StreamHandle stream);
  /// Valid random codes under middling scales in every tile, for benchmarks at depth. Only when tiled().
  void fill_codes(gpu::StreamHandle stream, int n, uint64_t seed);
  const KvSideConfig& config() const { return config_; }
  const KvLayout& layout() const { return layout_; }
  int64_t allocated_bytes() const;  ///< over all sequences
  int64_t saturated(const gpu::Stream& stream) const;
  /// Bytes a sequence with n positions reads in one decode step.
  int64_t read_bytes(int n) const;
  /// The coded row of (sequence, kv head, position), read back: for tests.
  std::vector<std::byte> coded_row(const gpu::Stream& stream, int seq, int head, int position) const;

 private:
  int64_t n_tiles() const { return (n_ctx_ + kTilePositions - 1) / kTilePositions; }
  KvFloatRows put(gpu::StreamHandle stream, int n_seq, int n_past, int n_new, float* rows, bool all_exact,
                  DeviceKvScratch& scratch);

  KvSideConfig config_;
  KvLayout layout_;
  int format_;  // number in KvFormatTypes
  int n_kv_heads_, head_dim_, n_ctx_;
  TileKind kind_ = TileKind::f16;  // of coded tiles
  bool tiled_;
  RotationView rotation_;  // table in rotation_table_
  gpu::Buffer rotation_table_, metric_, coded_, sinks_, ring_, centre_, head_scale_, saturated_;
  KvExactStore exact_;
  KvCodedStore coded_view_;
  KvDeviceCoding coding_;
  bool calibrated_ = false;
};

}  // namespace ridge
