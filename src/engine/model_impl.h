// What a public Model holds.
#pragma once

#include "model/device_model.h"
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
  std::unique_ptr<DeviceModel> device;  ///< where the model runs; null: on the CPU
};

/// A session of n_seq equal timelines on the model's device, and what its cache reports. Throws as Session does.
std::unique_ptr<DeviceSession> open_device_session(const Model& model, const SessionOptions& options, int n_seq);
KvReport device_kv_report(const Model::Impl& model, const DeviceSession& session);

/// The number N of "cuda[:N]", nothing for "cpu"; throws usage on other texts.
std::optional<int> parse_device(std::string_view device);

/// Formats and policies of all layers.
struct LayerConfigs {
  std::vector<KvSideConfig> k, v;
};
/// What the options say, over what the formats' policies say. Throws usage when that cannot work for the model.
LayerConfigs layer_configs(const SessionOptions& options, const Config& config);

}  // namespace ridge
