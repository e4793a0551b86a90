#include "model/device_kv.h"

#include "format/list.h"

namespace ridge {

DeviceKvStore::DeviceKvStore(gpu::StreamHandle stream, const KvSideConfig& config, bool is_k, int layer, int n_kv_heads,
                             int head_dim, int n_ctx, int n_seq, std::span<const float> metric)
    : config_(config),
      layout_(config, head_dim),
      format_(int(config.format - kv_formats().data())),
      n_kv_heads_(n_kv_heads),
      head_dim_(head_dim),
      n_ctx_(n_ctx),
      tiled_(find_tile_kind(format_, kind_) && tile_attn_unsupported(head_dim, 0, config.policy.sinks) == nullptr),
      centre_(config.policy.centre ? 4 * int64_t(n_seq) * n_kv_heads * head_dim : 0),
      head_scale_(config.format->head_scale ? 4 * int64_t(n_seq) * n_kv_heads : 0),
      saturated_(sizeof(unsigned long long)) {
  const int64_t heads = int64_t(n_seq) * n_kv_heads;
  const int sinks = config.policy
                        .sinks,  // One tile more than appends need, so that a session can go back kMaxRewind tokens.
      ring_tiles = layout_.ring_rows == 0 ? 0 : (layout_.ring_rows + kTilePositions - 1) / kTilePositions + 1;
  const TileKind recent = config.policy.recent == "i8r" ? TileKind::int8_row : TileKind::f16;
  if (tiled_) {
    coded_ = gpu::Buffer(heads * n_tiles() * TileShape(kind_, head_dim).bytes);
    sinks_ = gpu::Buffer(sinks > 0 ? heads * TileShape(TileKind::f16, head_dim).bytes : 0);
    ring_ = gpu::Buffer(heads * ring_tiles * TileShape(recent, head_dim).bytes);
  } else {
    coded_ = gpu::Buffer(heads * n_ctx * layout_.row_bytes);
    sinks_ = gpu::Buffer(2 * heads * sinks * head_dim);
    ring_ = gpu::Buffer(4 * heads * layout_.ring_rows * head_dim);
  }
  const RowRotation rotation(config.policy.rotation, layer, head_dim);
  rotation_table_ = gpu::to_device(stream, rotation.table());
  rotation_ = rotation.view();
  rotation_.table = rotation_table_.as<float>();
  if (config.policy.rounding == KvRounding::weighted) {
    RIDGE_CHECK(int64_t(metric.size()) == int64_t(n_kv_heads) * head_dim * head_dim, "metric of {} values",
                metric.size());
    metric_ = gpu::to_device(stream, std::span<const float>(metric_in_cache_space(rotation, head_dim, metric)));
  }
  exact_ = {.n_sinks = sinks, .ring_rows = layout_.ring_rows, .recent_i8r = config.policy.recent == "i8r"};
  if (tiled_) {
    exact_.tiled = true;
    exact_.is_k = is_k;
    exact_.ring_tiles = ring_tiles;
    exact_.sink_tiles = sinks_.as<std::byte>();
    exact_.recent_tiles = ring_.as<std::byte>();
  } else {
    exact_.sinks = sinks_.as<uint16_t>();
    exact_.ring = ring_.as<float>();
  }
  coding_ = {.scale = config.policy.scale,
             .head_scale = config.format->head_scale ? head_scale_.as<float>() : nullptr,
             .metric = metric_.bytes() > 0 ? metric_.as<float>() : nullptr};
  coded_view_ = {
      .n_ctx = n_ctx, .row_bytes = layout_.row_bytes, .rows = coded_.as<std::byte>(), .tiled = tiled_, .is_k = is_k};
}

TileSide DeviceKvStore::tile_side() const {
  RIDGE_CHECK(tiled_, "{} is not held in tiles here", config_.format->name);
  const int64_t head_stride = n_tiles() * TileShape(kind_, head_dim_).bytes;
  return {.kind = kind_,
          .coded = coded_.as<std::byte>(),
          .seq_stride = head_stride * n_kv_heads_,
          .head_stride = head_stride,
          .recent = exact_.recent_i8r ? TileKind::int8_row : TileKind::f16,
          .ring = ring_.as<std::byte>(),
          .ring_tiles = exact_.ring_tiles,
          .sinks = sinks_.as<std::byte>(),
          .n_sinks = exact_.n_sinks,
          .retention = layout_.retention,
          .rotation = rotation_,
          .centre = config_.policy.centre ? centre_.as<float>() : nullptr};
}

AppendSide DeviceKvStore::append_side() const {
  RIDGE_CHECK(tiled_, "{} is not held in tiles here", config_.format->name);
  return {.kind = kind_,
          .scale = config_.policy.scale,
          .retention = layout_.retention,
          .exact = exact_,
          .coded = coded_view_,
          .rotation = rotation_,
          .centre = config_.policy.centre ? centre_.as<float>() : nullptr,
          .metric = coding_.metric,
          .saturated = saturated_.as<unsigned long long>()};
}

void DeviceKvStore::reset(gpu::StreamHandle stream) {
  if (calibrated_ && centre_.bytes() > 0) gpu::clear(stream, centre_.as<void>(), centre_.bytes());
  calibrated_ = false;
}

void DeviceKvStore::append_tiles(gpu::StreamHandle stream, int n_seq, int n_past, int n_new, float* rows,
                                 DeviceKvScratch& scratch) {
  RIDGE_CHECK(tiled_, "{} is not held in tiles here", config_.format->name);
  put(stream, n_seq, n_past, n_new, rows, false, scratch);
}

KvFloatRows DeviceKvStore::put(gpu::StreamHandle stream, int n_seq, int n_past, int n_new, float* rows, bool all_exact,
                               DeviceKvScratch& scratch) {
  const int n = n_past + n_new, dim = head_dim_;
  const KvRetention& retention = layout_.retention;
  RIDGE_CHECK(n <= n_ctx_, "append {} at {} of {}", n_new, n_past, n_ctx_);
  const KvRowBatch batch{
      .n_seq = n_seq, .n_new = n_new, .n_past = n_past, .n_kv_heads = n_kv_heads_, .head_dim = dim, .rows = rows};
  auto* const saturated = saturated_.as<unsigned long long>();
  const bool keeps_exact = exact_.ring_rows > 0 || exact_.n_sinks > 0;

  // 1. Into cache space, rounded to f16 where exact rows are f16 rows. The centre is set in between when the batch
  // completes calibration.
  const bool calibrates = !calibrated_ && retention.calibration > 0 && n >= retention.calibration;
  const float* const centre = config_.policy.centre ? centre_.as<float>() : nullptr;
  device_to_space(stream, batch, exact_,
                  {.rotate = &rotation_,
                   .round_before = retention.calibration,
                   .centre = calibrated_ ? centre : nullptr,
                   .round = keeps_exact && !calibrates},
                  saturated);
  if (calibrates) {
    const int first = std::min(exact_.n_sinks, retention.calibration - 1);
    device_calibrate(stream, batch, exact_, first, retention.calibration,
                     config_.policy.centre ? centre_.as<float>() : nullptr,
                     config_.format->head_scale ? head_scale_.as<float>() : nullptr);
    device_to_space(stream, batch, exact_,
                    {.rotate = nullptr, .round_before = 0, .centre = centre, .round = keeps_exact}, saturated);
    calibrated_ = true;
  }

  // 2. The exact rows this append's queries may need; then code what leaves the window, before ring slots are reused.
  const int old_end = retention.coded_end(n_past), new_end = retention.coded_end(n);
  KvFloatRows exact{.first = n, .count = 0, .rows = nullptr};
  if (exact_.ring_rows > 0 && (all_exact || new_end > old_end)) {
    exact = {.first = old_end, .count = n - old_end, .rows = nullptr};
    // Scratch is asked for at its largest, so that it does not grow with every token.
    RIDGE_CHECK(exact.count <= n_new + exact_.ring_rows, "{} exact rows, ring of {}", exact.count, exact_.ring_rows);
    exact.rows = scratch.exact.ensure(int64_t(n_seq) * n_kv_heads_ * (n_new + exact_.ring_rows) * dim);
    device_gather_exact(stream, batch, exact_, exact);
    // Rotor rows are rounded under a metric: too much for a thread a row.
    const bool rotor = tiled_ && (kind_ == TileKind::rotor3 || kind_ == TileKind::rotor4);
    const int first = old_end, count = new_end - old_end;
    if (rotor && first % kTilePositions == 0 && count % kTilePositions == 0)
      encode_whole_tiles(stream, kind_, coding_.scale, coding_.metric, n_seq, n_kv_heads_, dim, exact, first, count,
                         coded_view_, saturated);
    else device_encode(stream, format_, n_seq, n_kv_heads_, dim, exact, first, count, coding_, coded_view_, saturated);
  } else if (exact_.ring_rows == 0) {
    device_encode(stream, format_, batch, coding_, coded_view_, saturated);
  }
  if (keeps_exact) device_keep_exact(stream, batch, exact_);
  return exact;
}

DeviceKvSide DeviceKvStore::append(gpu::StreamHandle stream, int n_seq, int n_past, int n_new, float* rows,
                                   DeviceKvScratch& scratch) {
  const KvFloatRows exact = put(stream, n_seq, n_past, n_new, rows, true, scratch);
  // Coded rows as floats.
  const int new_end = layout_.retention.coded_end(n_past + n_new), dim = head_dim_;
  const KvFloatRows coded{
      .first = 0, .count = new_end, .rows = scratch.coded.ensure(int64_t(n_seq) * n_kv_heads_ * n_ctx_ * dim)};
  device_decode(stream, format_, n_seq, n_kv_heads_, dim, coding_, coded_view_, exact_, coded);
  return {.coded = coded.rows,
          .n_coded = coded.count,
          .exact = exact.rows,
          .exact_first = exact.first,
          .retention = layout_.retention,
          .rounds = config_.format->name != "f32"};
}

void DeviceKvStore::fill_codes(gpu::StreamHandle stream, int n, uint64_t seed) {
  RIDGE_CHECK(tiled_ && n <= n_ctx_, "{} random rows of {}", n, n_ctx_);
  device_fill_tiles(stream, kind_, head_dim_, coded_.bytes() / TileShape(kind_, head_dim_).bytes, seed,
                    coded_.as<std::byte>());
  const TileKind recent = exact_.recent_i8r ? TileKind::int8_row : TileKind::f16;
  device_fill_tiles(stream, recent, head_dim_, ring_.bytes() / TileShape(recent, head_dim_).bytes, seed + 1,
                    ring_.as<std::byte>());
  device_fill_tiles(stream, TileKind::f16, head_dim_, sinks_.bytes() / TileShape(TileKind::f16, head_dim_).bytes,
                    seed + 2, sinks_.as<std::byte>());
  calibrated_ = n >= layout_.retention.calibration;
}

void DeviceKvStore::rotate_queries(gpu::StreamHandle stream, int64_t n_rows, float* q) const {
  device_rotate(stream, n_rows, rotation_, q);
}

void DeviceKvStore::restore_output(gpu::StreamHandle stream, int n_seq, int n_tokens, int n_heads, float* out) const {
  device_restore(stream, n_seq, n_tokens, n_heads, n_kv_heads_, rotation_,
                 calibrated_ && config_.policy.centre ? centre_.as<float>() : nullptr, out);
}

int64_t DeviceKvStore::allocated_bytes() const {
  return coded_.bytes() + sinks_.bytes() + ring_.bytes() + centre_.bytes() + head_scale_.bytes();
}

int64_t DeviceKvStore::saturated(const gpu::Stream& stream) const {
  unsigned long long count = 0;
  gpu::download(stream, &count, saturated_.as<void>(), sizeof count);
  stream.synchronize();
  return int64_t(count);
}

int64_t DeviceKvStore::read_bytes(int n) const {
  const int coded = layout_.retention.coded_end(n);
  const int64_t recent = tiled_ ? layout_.recent_bytes : 4 * int64_t(head_dim_);
  return n_kv_heads_ * (coded * layout_.row_bytes + (n - coded) * recent);
}

std::vector<std::byte> DeviceKvStore::coded_row(const gpu::Stream& stream, int seq, int head, int position) const {
  std::vector<std::byte> row(size_t(layout_.row_bytes));
  const int64_t seq_head = int64_t(seq) * n_kv_heads_ + head;
  if (tiled_) {
    std::vector<std::byte> tile(size_t(TileShape(kind_, head_dim_).bytes));
    const int64_t at = (seq_head * n_tiles() + position / kTilePositions) * int64_t(tile.size());
    gpu::download(stream, tile.data(), coded_.as<std::byte>() + at, int64_t(tile.size()));
    stream.synchronize();
    read_tile_row(format_, tile.data(), exact_.is_k, position % kTilePositions, head_dim_, row.data());
    return row;
  }
  const int64_t offset = (seq_head * n_ctx_ + position) * layout_.row_bytes;
  gpu::download(stream, row.data(), coded_.as<std::byte>() + offset, layout_.row_bytes);
  stream.synchronize();
  return row;
}

}  // namespace ridge
