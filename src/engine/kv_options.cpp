#include "engine/kv_options.h"

#include <algorithm>
#include <climits>

#include "op/cache/rotation.h"

namespace ridge {
namespace {

/// The format's policy with the options over it, for side "K" or "V" of a layer.
KvSideConfig side_config(const KvSideOptions& options, std::string_view side, const LayerPlan& layer) {
  const KvFormat& format = *find_kv_format(options.format).or_throw();
  const bool serves_as_v = side == "V" || layer.mixer == MixerKind::latent;
  KvSideConfig config = default_kv_side(format, serves_as_v ? KvSide::v : KvSide::k);
  if (options.rotation) config.policy.rotation = find_rotation(*options.rotation).or_throw();
  if (options.centre) config.policy.centre = *options.centre;
  if (options.window) config.policy.window = *options.window;
  if (options.sinks) config.policy.sinks = *options.sinks;
  if (options.scale) config.policy.scale = find_scale(*config.format, *options.scale).or_throw();
  if (options.rounding) config.policy.rounding = find_rounding(*options.rounding).or_throw();
  if (options.recent) config.policy.recent = find_kv_format(*options.recent).or_throw()->name;
  // An f16 or f32 cache is exact already: windows and sinks would only store the same rows elsewhere.
  if (config.format->name == "f16" || config.format->name == "f32") config.policy.window = config.policy.sinks = 0;
  check_kv_side(config, side, layer.attention.head_dim).or_throw();
  return config;
}

/// How a layer's keys are turned in a context of n_ctx positions; 0: the longest that the model was trained for.
KeyRope key_rope(const ModelPlan& plan, const LayerPlan& layer, int n_ctx) {
  const auto number = size_t(plan.rope_of(layer.attention, n_ctx > 0 ? n_ctx : INT_MAX));
  if (layer.attention.n_kv_heads == 0 || layer.attention.kv_layer >= 0 || number >= plan.ropes.size()) return {};
  const Rope& rope = plan.ropes[number];
  // A latent row has values in front that RoPE leaves.
  return {rope.frequency, layer.latent.rank, rope.pairs == RopePairs::halves};
}

KvLayerConfig layer_config(const KvSideOptions& k, const KvSideOptions& v, const LayerPlan& layer, KeyRope rope) {
  const AttentionPlan& a = layer.attention;
  const bool latent = layer.mixer == MixerKind::latent;
  KvLayerConfig config{
      .k = side_config(k, "K", layer),
      .v = side_config(v, latent ? "K" : "V", layer),
      .n_kv_heads = a.kv_layer >= 0 ? 0 : a.n_kv_heads,
      .head_dim = a.head_dim,
      .attention_window = a.window,
      .state_values = layer.delta.state_values() + layer.conv.state_values() + layer.mamba.state_values(),
      .state_elsewhere = layer.mixer == MixerKind::delta && layer.delta.n_key_heads == 0,
      .rope = std::move(rope),
      .v_is_k = latent};
  if (const std::string differs = kv_side_difference(config.v, config.k); latent && !differs.empty())
    throw_error(ErrorKind::usage, "latent rows are K and V in one: V cannot have {} (give both sides the same cache)",
                differs);
  if (layer.latent.index.top_k > 0) {  // small rows that decide what a query sees: of floats whatever the cache has
    config.index_dim = layer.latent.index.dim;
    config.v = default_kv_side(*find_kv_format(config.k.format->name == "f32" ? "f32" : "f16").or_throw(), KvSide::v);
  }
  return config;
}

}  // namespace

std::vector<KvLayerConfig> layer_configs(const SessionOptions& options, const ModelPlan& plan) {
  std::vector<KvLayerConfig> layers;
  const auto config = [&](const KvSideOptions& k, const KvSideOptions& v, const LayerPlan& layer) {
    return layer_config(k, v, layer, key_rope(plan, layer, options.n_ctx));
  };
  for (const LayerPlan& layer : plan.layers) layers.push_back(config(options.k, options.v, layer));
  std::vector<bool> taken(layers.size(), false);
  for (const KvLayerOptions& own : options.kv_layers) {
    if (own.first < 0 || own.last < own.first || own.last >= ssize(layers))
      throw_error(ErrorKind::usage, "kv_layers {}-{}: this model has layers 0 to {}", own.first, own.last,
                  ssize(layers) - 1);
    for (auto layer = size_t(own.first); layer <= size_t(own.last); ++layer) {
      if (taken[layer])
        throw_error(ErrorKind::usage, "kv_layers: layer {} is given twice (ranges may not overlap)", layer);
      taken[layer] = true;
      layers[layer] = config(own.k, own.v, plan.layers[layer]);
    }
  }
  for (const LayerPlan& layer : plan.layers)
    if (layer.attention.kv_layer >= 0) ++layers[size_t(layer.attention.kv_layer)].n_readers;
  return layers;
}

int pages_for(std::span<const KvLayerConfig> layers, int n) {
  int most = 0;
  for (const KvLayerConfig& layer : layers)
    for (const KvSide side : kKvSides)
      most = std::max(most, ridge::pages_for(KvLayout(layer, side, false).tiles.retention, n));
  return most;
}

int most_sliding_pages(std::span<const KvLayerConfig> layers) {
  std::vector<KvTiles> sides;
  int last = 0;  // a length from which on the number repeats, every kPagePositions
  for (const KvLayerConfig& layer : layers)
    for (const KvSide side : kKvSides) {
      const KvTiles t = KvLayout(layer, side, false).tiles;
      if (page_class_of(t) == PageClass::full) continue;
      last = std::max(last, kCalibration + t.attention_window + t.retention.window + kSpareRows);
      sides.push_back(t);
    }
  int most = 0;
  for (int n = 0; !sides.empty() && n <= last + 2 * kPagePositions; ++n) {
    int first = n, pages = 0;
    for (const KvTiles& t : sides) {
      first = std::min(first, first_needed(t, std::max(0, n - kSpareRows)));
      pages = std::max(pages, pages_for(t.retention, n + 1));
    }
    most = std::max(most, pages - first / kPagePositions);
  }
  return most;
}

PageNumbers pool_pages(std::span<const KvLayerConfig> layers, int n_ctx, int n_seqs, int n_step) {
  const int64_t full = std::max<int64_t>(1, pages_for(layers, n_ctx)) * n_seqs;
  // s tokens of a sequence bring a page beyond those of one token for every 128 of the other s - 1, rounded up. Steps
  // of proposals are as long as going back reaches.
  const int64_t in_step = (std::max(n_step, kSpareRows) + (kPagePositions - 2) * int64_t(n_seqs)) / kPagePositions;
  const int64_t sliding = int64_t(most_sliding_pages(layers)) * n_seqs + in_step;
  return {int(std::min<int64_t>(full, INT_MAX)),
          int(std::clamp<int64_t>(sliding, 1, std::min<int64_t>(full, INT_MAX)))};
}

int context_that_fits(std::span<const KvLayerConfig> layers, bool on_device, int most, int n_step, int64_t bytes) {
  const auto fits = [&](int n) {
    return cache_bytes(layers, on_device, pool_pages(layers, n, 1, std::min(n, n_step)), 1) <= bytes;
  };
  if (fits(most)) return most;
  int fitting = 0, too_long = most / kPagePositions + 1;  // pages
  while (too_long - fitting > 1) {
    const int middle = fitting + (too_long - fitting) / 2;
    (fits(middle * kPagePositions) ? fitting : too_long) = middle;
  }
  return fitting * kPagePositions;
}

int64_t kv_read_bytes(const KvMemory& memory, int n) {
  int64_t bytes = 0;
  for (int layer = 0; layer < memory.n_layers(); ++layer)
    for (const KvSide side : kKvSides) {
      bytes += memory.here().layout(layer, side).step_bytes(n);
    }
  return bytes;
}

int64_t kv_row_bytes(const SessionOptions& options, const ModelPlan& plan, int n) {
  int64_t bytes = 0;
  for (const KvLayerConfig& layer : layer_configs(options, plan))
    for (const KvSide side : kKvSides) bytes += kv_read_bytes(KvLayout(layer, side, false).tiles, n);
  return bytes;
}

namespace {

/// Layers [first, last) of one side: the settings are those of most of them (of the first, when it is a tie), the bytes
/// their sums.
KvSideReport side_report(KvMemory& memory, KvSide side, int first, int last) {
  const auto config = [&](int layer) -> const KvSideConfig& { return memory.layout(layer, side).config; };
  int typical = first, most = 0;
  for (int i = first; i < last; ++i) {
    int same = 0;
    for (int j = first; j < last; ++j) same += kv_side_difference(config(i), config(j)).empty();
    if (same > most) typical = i, most = same;
  }
  const KvSideConfig& of_most = config(typical);
  KvSideReport report{.format = std::string(of_most.format->name),
                      .rotation = std::string(rotation_name(of_most.policy.rotation)),
                      .scale = std::string(scale_name(of_most.policy.scale)),
                      .rounding = std::string(rounding_name(of_most.policy.rounding)),
                      .recent = std::string(of_most.policy.recent),
                      .centre = of_most.policy.centre,
                      .window = of_most.policy.window,
                      .sinks = of_most.policy.sinks};
  int64_t values = 0;
  for (int i = first; i < last; ++i) {
    const KvLayout& layout = memory.layout(i, side);
    report.bytes_per_token += layout.bytes_per_token();
    report.fixed_bytes += layout.slot_bytes();
    report.held_bytes_4k += kv_read_bytes(layout.tiles, 4096) + layout.centre_bytes() + layout.head_scale_bytes();
    report.allocated_bytes += memory.allocated_bytes(i, side);
    report.saturated += memory.saturated(i, side);
    values += int64_t(layout.tiles.n_kv_heads) * layout.tiles.head_dim;
  }
  if (values > 0) report.bits_per_value = 8.0 * double(report.bytes_per_token) / double(values);
  return report;
}

}  // namespace

KvReport kv_report(KvMemory& memory, int n_ctx) {
  const int n = memory.n_layers();
  KvReport report{.k = side_report(memory, KvSide::k, 0, n), .v = side_report(memory, KvSide::v, 0, n), .n_ctx = n_ctx};
  const auto equal = [&](int a, int b) {
    return kv_side_difference(memory.layout(a, KvSide::k).config, memory.layout(b, KvSide::k).config).empty() &&
           kv_side_difference(memory.layout(a, KvSide::v).config, memory.layout(b, KvSide::v).config).empty();
  };
  for (int first = 0, last = 0; first < n; first = last) {
    for (last = first + 1; last < n && equal(first, last);) ++last;
    report.layers.push_back(
        {first, last - 1, side_report(memory, KvSide::k, first, last), side_report(memory, KvSide::v, first, last)});
  }
  return report;
}

}  // namespace ridge
