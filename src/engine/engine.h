// Engine behind a Model: the loaded model, its plan, and the backend that runs it. Sessions, the server and the lab use
// it; other programs use ridge/engine.h.
#pragma once

#include <mutex>

#include "engine/backend.h"
#include "engine/kv_options.h"
#include "model/identity.h"
#include "model/slice.h"
#include "rank/ranks.h"

namespace ridge {

/// Refuses token ids that are no rows of the vocabulary; throws usage.
void check_tokens(std::span<const int32_t> tokens, int vocab_size);

class Engine {
 public:
  /// As Model::load(). Throws Error. With `ranks`, which must outlive it, this is one rank's slice of the model:
  /// config, plan and info are the slice's, and all ranks make the same calls. The first rank that leads (Ranks::led(),
  /// lead.h) has the whole model, and a backend that stands for all ranks; follow() makes the others' calls.
  Engine(const std::string& path, const LoadOptions& options, Ranks* ranks = nullptr);

  const ModelInfo& info() const { return info_; }
  const Config& config() const { return loaded_.config; }
  const ModelPlan& plan() const { return plan_; }
  Weights& weights() { return loaded_.weights; }
  /// Null where this process has the whole model, or leads.
  const ModelSlice* slice() const { return slice_ && !leads() ? &*slice_ : nullptr; }
  bool on_device() const { return !devices_.empty(); }
  /// Tokens of a prompt's step unless told otherwise. The matmuls of a GPU gain from more tokens; on a CPU more only
  /// take memory.
  int default_ubatch() const { return on_device() ? 2048 : 512; }
  /// The number of the CUDA device, if it runs there; of several, that of the first.
  std::optional<int> device() const { return devices_.empty() ? std::nullopt : std::optional(devices_[0]); }
  /// Numbers of this process's CUDA devices that share the model; none on the CPU.
  std::span<const int> devices() const { return devices_; }
  /// Throws usage when there is none.
  const io::Tokenizer& tokenizer() const;
  bool has_tokenizer() const { return loaded_.tokenizer.has_value(); }
  /// Text as ids that the model can read. Throws usage for a token without a row in the embedding, with its name.
  std::vector<int32_t> tokenize(std::string_view text, bool add_special, bool parse_special) const;
  /// Tokenizer::add_end(): before requests and sessions begin.
  void add_end(int32_t token) { loaded_.tokenizer->add_end(token); }

  Backend& backend() { return *backend_; }
  /// The CPU of this model: it runs everything, or the host's part of a device's work.
  CpuContext& context() { return context_; }

  /// A pool over caches of these layers (layer_configs()) with so many pages and slots, for sequences of at most n_ctx
  /// positions (0: not said). Throws Error.
  std::unique_ptr<SequencePool> open_pool(std::span<const KvLayerConfig> layers, PageNumbers n_pages, SlotNumbers slots,
                                          int n_ctx = 0);
  /// Opens a pool for n_seqs sequences of n_ctx positions that take steps of n_ubatch. Throws no_memory that names the
  /// context which fits.
  std::unique_ptr<SequencePool> open_checked_pool(std::span<const KvLayerConfig> layers, PageNumbers n_pages,
                                                  int n_seqs, int n_ctx, int n_ubatch);
  /// Memory on the host for such caches, whatever the backend: checks and studies.
  std::unique_ptr<HostKvMemory> open_host_memory(std::span<const KvLayerConfig> layers, PageNumbers n_pages,
                                                 SlotNumbers slots);
  /// Metric of weighted rounding in such caches, made once a model; null when no side rounds so.
  const KvMetric* kv_metric(std::span<const KvLayerConfig> layers);
  /// The identity (model/identity.h) of the whole model, for sequences of at most n_ctx positions. Made at the first
  /// call.
  uint64_t hash(int n_ctx) const;
  /// Message about logits that are not finite: the file, and the tensor whose weights are not finite, if any. Looks
  /// once.
  const std::string& why_not_finite();
  /// out = x [n, d_model] of Outputs::hidden() behind the model's last norm, as the output matrix reads it.
  void norm_hidden(View2<const float> x, View2<float> out);
  /// Turns a row of K, or of the index beside it, by n positions, of a layer and a context of n_ctx: what
  /// SequencePool::shift() wants.
  void turn_row(int layer, KvSide side, int n_ctx, int n_positions, float* row);

 private:
  bool leads() const { return ranks_ && ranks_->led() && ranks_->is_first(); }
  void take_slice();
  void keep_experts(const std::string& path, const LoadOptions& options);
  void pack(Weights& weights);
  std::unique_ptr<Backend> make_rank(const ModelPlan& plan, Weights& weights, const LoadOptions& options);

  Ranks* const ranks_;
  CpuContext context_;
  std::optional<CpuContext> experts_context_;  // of experts in host memory, while a device runs the rest
  LoadedModel loaded_;
  std::optional<ModelSlice> slice_;
  mutable std::once_flag identified_;
  mutable ModelIdentity identity_;  // of the model before it was cut
  ModelPlan plan_;
  ModelInfo info_;
  double pack_seconds_ = 0;
  std::optional<KvMetric> kv_metric_;
  std::vector<int> devices_;
  std::unique_ptr<Backend> backend_;
  std::string why_not_finite_;
};

/// The forms of every layer; none without a metric.
std::vector<KvMetricView> metric_views(const KvMetric* metric, int n_layers);

}  // namespace ridge
