#include "op/cache/layout.h"

#include <algorithm>
#include <numeric>

#include "op/cache/rotation.h"
#include "op/cache/tile_formats.h"

namespace ridge {
namespace {

KvRetention make_retention(const KvSideConfig& config) {
  const KvPolicy& policy = config.policy;
  return {.window = policy.window,
          .tile = policy.window > 0 ? kTilePositions : 1,
          .calibration = policy.centre || config.format->head_scale ? kCalibration : 0};
}

/// Every position that may still be exact: a window, the tile that fills up and the spare rows; and all positions
/// before calibration.
int ring_tiles(const KvRetention& retention) {
  const int recent = retention.window > 0 ? retention.window + kTilePositions + kSpareRows : 0;
  return std::max(recent, retention.calibration) / kTilePositions;
}

int format_number(const KvFormat& format) { return int(&format - kv_formats().data()); }

}  // namespace

KvSideConfig default_kv_side(const KvFormat& format, KvSide side) {
  KvSideConfig config{.format = &format, .policy = format.policy};
  config.policy.centre = config.policy.centre && side == KvSide::k;
  return config;
}

int common_head_dim(std::span<const KvLayerConfig> layers) {
  int common = 0;
  for (const KvLayerConfig& layer : layers) common = std::gcd(common, layer.head_dim);
  return common;
}

KvLayout::KvLayout(const KvLayerConfig& layer, KvSide side, bool in_fragments) : config(layer.side(side)) {
  const bool is_index = side == KvSide::v && layer.index_dim > 0;
  const int head_dim = is_index ? layer.index_dim : layer.head_dim;
  has_rope = side == KvSide::k || is_index;
  if (side == KvSide::k) state_values = layer.state_values;
  if (side == KvSide::k) state_elsewhere = layer.state_elsewhere;
  n_readers = layer.n_readers;
  tiles.format = format_number(*config.format);
  tiles.recent = format_number(config.recent());
  tiles.side = side;
  tiles.n_kv_heads = is_index ? 1 : side == KvSide::k || !layer.v_is_k ? layer.n_kv_heads : 0;
  tiles.head_dim = head_dim;
  tiles.retention = make_retention(config);
  tiles.n_sinks = config.policy.sinks;
  tiles.attention_window = layer.attention_window;
  tiles.ring_tiles = ring_tiles(tiles.retention);
  tiles.row_bytes = config.format->row_bytes(head_dim);
  tiles.recent_row_bytes = config.recent().row_bytes(head_dim);
  tiles.rotation.kind = config.policy.rotation;
  tiles.rotation.head_dim = head_dim;
  tiles.scale = config.policy.scale;
  if (side == KvSide::k && config.policy.centre) {
    frequency = layer.rope.frequency;
    tiles.turn = {.n_pairs = int(frequency.size()), .first = layer.rope.first, .halves = layer.rope.halves};
  }
  if (in_fragments) {
    tiles.kind = *tile_kind_of(tiles.format);
    tiles.recent_kind = *tile_kind_of(tiles.recent);
    tiles.tile_bytes = TileShape(tiles.kind, head_dim).bytes;
    tiles.ring_tile_bytes = TileShape(tiles.recent_kind, head_dim).bytes;
    tiles.sink_bytes = tiles.n_sinks > 0 ? TileShape(TileKind::f16, head_dim).bytes : 0;
  } else {
    tiles.tile_bytes = kTilePositions * tiles.row_bytes;
    tiles.ring_tile_bytes = kTilePositions * tiles.recent_row_bytes;
    tiles.sink_bytes = int64_t(tiles.n_sinks) * 2 * head_dim;
  }
}

int64_t kv_read_bytes(const KvTiles& t, int n, int n_new) {
  const int64_t first = t.first_seen(n - n_new + 1), sinks = std::max<int64_t>(0, std::min(t.n_sinks, n) - first);
  const int64_t coded_end = std::max<int64_t>(sinks, t.retention.coded_end(n) - first);
  n -= int(first);
  return t.n_kv_heads *
         (sinks * 2 * t.head_dim + (coded_end - sinks) * t.row_bytes + (n - coded_end) * t.recent_row_bytes);
}

int64_t KvLayout::step_bytes(int n) const { return n_readers * kv_read_bytes(tiles, n) + state_bytes(); }

int pages_for(const KvRetention& retention, int n) {
  return (retention.coded_end(n) + kPagePositions - 1) / kPagePositions;
}

int first_needed(const KvTiles& t, int n) { return std::min(t.first_seen(n + 1), t.retention.coded_end(n)); }

Support device_tiles(const KvLayerConfig& layer) {
  if (layer.v_is_k) return {false, "latent rows"};
  if (layer.head_dim != 64 && layer.head_dim != 128 && layer.head_dim != 256)
    return {false, fmt::format("head_dim {} is not 64, 128 or 256", layer.head_dim)};
  for (const KvSideConfig& side : {layer.k, layer.v}) {
    const KvRetention retention = make_retention(side);
    const std::optional<TileKind> kind = tile_kind_of(format_number(*side.format));
    if (!kind) return {false, fmt::format("{} has no order for tensor cores", side.format->name)};
    const bool rotor = is_rotor(*kind);
    if (rotor && side.policy.window == 0) return {false, "rotor rows without a window"};
    if (!rotor && side.policy.scale == KvScale::lsq) return {false, "scales by least squares"};
    if (side.policy.window == 0 && retention.calibration > 0) return {false, "centred rows without a window"};
    if (side.policy.recent != "f16" && side.policy.recent != "i8r")
      return {false, fmt::format("a window of {} rows, not f16 or i8r", side.policy.recent)};
    if (side.policy.sinks > kTilePositions) return {false, fmt::format("{} sinks, more than 32", side.policy.sinks)};
  }
  if (layer.k.policy.sinks != layer.v.policy.sinks && layer.k.policy.sinks > 0 && layer.v.policy.sinks > 0)
    return {false, "K and V with different numbers of sinks"};
  return {};
}

std::string kv_side_difference(const KvSideConfig& a, const KvSideConfig& b) {
  const KvPolicy &p = a.policy, &q = b.policy;
  if (a.format != b.format) return fmt::format("format {}, not {}", a.format->name, b.format->name);
  if (p.rotation != q.rotation)
    return fmt::format("rotation {}, not {}", rotation_name(p.rotation), rotation_name(q.rotation));
  if (p.scale != q.scale) return fmt::format("scale rule {}, not {}", scale_name(p.scale), scale_name(q.scale));
  if (p.centre != q.centre) return fmt::format("centring {}, not {}", p.centre ? "on" : "off", q.centre ? "on" : "off");
  if (p.window != q.window) return fmt::format("window {}, not {}", p.window, q.window);
  if (p.sinks != q.sinks) return fmt::format("sinks {}, not {}", p.sinks, q.sinks);
  if (p.rounding != q.rounding)
    return fmt::format("rounding {}, not {}", rounding_name(p.rounding), rounding_name(q.rounding));
  if (p.recent != q.recent) return fmt::format("window format {}, not {}", p.recent, q.recent);
  return {};
}

Status check_kv_side(const KvSideConfig& config, std::string_view side, int head_dim) {
  const KvFormat& format = *config.format;
  if (head_dim % format.group != 0)
    return fail(ErrorKind::usage,
                "{} cache format {} needs head_dim to be a multiple of {}, this model has {} (use f16)", side,
                format.name, format.group, head_dim);
  if (config.policy.window < 0 || config.policy.window % kTilePositions != 0)
    return fail(ErrorKind::usage, "{} cache: window {} is not a multiple of {} (try {})", side, config.policy.window,
                kTilePositions,
                (std::max(0, config.policy.window) + kTilePositions - 1) / kTilePositions * kTilePositions);
  if (config.policy.window > (1 << 20))
    return fail(ErrorKind::usage, "{} cache: window {} is too large", side, config.policy.window);
  if (config.policy.sinks < 0 || config.policy.sinks > kCalibration / 2)
    return fail(ErrorKind::usage, "{} cache: sinks {} is out of range (0 to {})", side, config.policy.sinks,
                kCalibration / 2);
  if (config.policy.rounding == KvRounding::weighted && !format.can_weigh)
    return fail(ErrorKind::usage, "{} cache format {} knows nearest rounding only", side, format.name);
  const KvFormat& recent = config.recent();
  if (recent.head_scale || recent.policy.rotation != Rotation::none || head_dim % recent.group != 0)
    return fail(ErrorKind::usage, "{} cache: {} cannot hold the window (try recent=f16 or recent=i8r)", side,
                recent.name);
  return {};
}

}  // namespace ridge
