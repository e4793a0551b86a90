// What a public Model holds.
#pragma once

#include "model/kv_cache.h"
#include "model/kv_metric.h"
#include "model/weights.h"
#include "ridge/engine.h"

namespace ridge {

struct Model::Impl {
  Impl(int n_threads, Isa limit) : context(n_threads, limit) {}
  const io::Tokenizer& tokenizer() const;  ///< throws usage when there is none

  /// For stores of these configurations; the metric is made when the first one rounds weighted.
  KvRoundingTools rounding_tools(std::span<const KvSideConfig> k, std::span<const KvSideConfig> v);

  CpuContext context;
  LoadedModel loaded;
  Rope rope;
  ModelInfo info;
  std::optional<KvMetric> kv_metric;
};

/// Formats and policies of all layers.
struct LayerConfigs {
  std::vector<KvSideConfig> k, v;
};
/// What the options say, over what the formats' policies say. Throws usage when that cannot work for the model.
LayerConfigs layer_configs(const SessionOptions& options, const Config& config);

}  // namespace ridge
