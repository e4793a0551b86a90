#include <algorithm>
#include <climits>

#include "engine/cuda_model.h"
#include "engine/cuda_speculation.h"
#include "gpu/device_query.h"
#include "op/attn/attn_cuda.h"
#include "op/attn/device_attention.h"
#include "op/delta/chunks_cuda.h"
#include "op/delta/mamba_chunks_cuda.h"
#include "op/score/score_cuda.h"

namespace ridge {

View2<const float> CudaOutputs::logits() {
  gpu::use_device(device_);
  float* const host = host_.ensure(std::max<int64_t>(1, n_rows_ * vocab_size_));
  gpu::download(stream_, host, rows_.as<void>(), 4 * n_rows_ * vocab_size_);
  finish();
  return {host, n_rows_, vocab_size_};
}

View2<const float> CudaOutputs::hidden() {
  gpu::use_device(device_);
  float* const host = host_hidden_.ensure(std::max<int64_t>(1, n_hidden_ * d_model_));
  gpu::download(stream_, host, hidden_.as<void>(), 4 * n_hidden_ * d_model_);
  finish();
  return {host, n_hidden_, d_model_};
}

void CudaOutputs::score(Outputs* base, std::span<const int32_t> targets) {
  gpu::use_device(device_);
  const auto* other = static_cast<CudaOutputs*>(base);
  const auto n = ssize(targets);
  RIDGE_CHECK(n == n_rows_ && (!other || other->n_rows_ == n), "{} targets for {} rows", n, n_rows_);
  for (const int32_t target : targets)
    RIDGE_CHECK(target >= 0 && target < vocab_size_, "target {} of {}", target, vocab_size_);
  constexpr int64_t kBytes = sizeof(RowScore);
  if ((n_scores_ + n) * kBytes > scores_.bytes()) {
    gpu::Buffer larger(std::max(2 * scores_.bytes(), (n_scores_ + n) * kBytes));
    gpu::copy(stream_, larger.as<void>(), scores_.as<void>(), n_scores_ * kBytes);
    stream_.synchronize();
    scores_ = std::move(larger);
  }
  auto* const on_device = targets_.ensure<int32_t>(n);
  gpu::upload(stream_, on_device, targets.data(), 4 * n);
  device_score(stream_, n, vocab_size_, other ? other->on_device() : nullptr, rows_.as<float>(), on_device,
               scores_.as<RowScore>() + n_scores_);
  n_scores_ += n;
}

std::vector<RowScore> CudaOutputs::take_scores() {
  gpu::use_device(device_);
  std::vector<RowScore> scores(static_cast<size_t>(n_scores_));
  gpu::download(stream_, scores.data(), scores_.as<void>(), n_scores_ * int64_t(sizeof(RowScore)));
  finish();
  n_scores_ = 0;
  return scores;
}

namespace {

bool has_delta(const ModelPlan& plan) {
  return std::ranges::any_of(plan.layers, [](const LayerPlan& layer) { return layer.mixer == MixerKind::delta; });
}

/// Steps that feed themselves, one token a sequence.
class CudaSampling final : public DeviceSampling {
 public:
  CudaSampling(CudaRunner& runner, SamplingWorkspace& workspace, std::span<const SeqId> seqs, SequencePool& pool,
               DeviceKvMemory& memory, CudaOutputs& outputs)
      : DeviceSampling(seqs, pool),
        runner_(runner),
        workspace_(workspace),
        memory_(memory),
        outputs_(outputs),
        unread_(seqs.size()) {
    workspace_.taken = true;
  }
  ~CudaSampling() override { workspace_.taken = false; }

  void queue(int64_t step) override {
    if (step == 0) return runner_.sample(outputs_, workspace_);
    // The tokens are on the device; the host's copy gives their number.
    runner_.run({.tokens = unread_, .seqs = seqs_, .logits = LogitRows::last}, pool_, memory_, outputs_, &workspace_);
  }
  bool read(int64_t step, std::span<int32_t> tokens) override { return workspace_.ring.read(step, tokens); }
  bool idle() override { return runner_.stream().idle(); }
  void finish() override { runner_.stream().synchronize(); }
  /// States go back by few surplus steps.
  int most_ahead() const override {
    if (!has_delta(runner_.plan())) return SamplingWorkspace::kSlots;
    int most = kStateHistory;
    for (const SeqTokens& of : seqs_) most = std::min(most, memory_.states_kept(pool_.slot(of.seq)));
    return most;
  }

 private:
  CudaRunner& runner_;
  SamplingWorkspace& workspace_;
  DeviceKvMemory& memory_;
  CudaOutputs& outputs_;
  std::vector<int32_t> unread_;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, std::string name, const ModelPlan& plan, const Weights& weights, const DeviceOptions& options,
              std::optional<CudaRank> rank)
      : name_(std::move(name)), runner_(device, plan, weights, options, std::move(rank)) {}

  std::unique_ptr<KvMemory> open_memory(std::span<const KvLayerConfig> layers, std::span<const KvMetricView> metrics,
                                        PageNumbers n_pages, SlotNumbers slots) override;
  std::unique_ptr<Outputs> make_outputs() override {
    return std::make_unique<CudaOutputs>(runner_.stream(), runner_.device(), runner_.plan().vocab_size,
                                         runner_.experts_of_host());
  }
  void step(const Batch& batch, const SequencePool& pool, KvMemory& memory, Outputs& outputs) override {
    runner_.run(batch, pool, static_cast<DeviceKvMemory&>(memory), static_cast<CudaOutputs&>(outputs), nullptr);
  }
  int max_tokens() const override { return 1 << 15; }
  void watch(OnAttention on_attention, OnBlock on_block) override {
    RIDGE_CHECK(!on_attention, "the rows of a device's attention cannot be watched");
    runner_.watch(std::move(on_block));
  }
  bool on_device() const override { return true; }
  int most_verified() const override {
    return runner_.options().least_rows > 1 ? runner_.options().least_rows : INT_MAX;
  }
  std::unique_ptr<DeviceSampling> start_sampling(std::span<const SeqId> seqs, SequencePool& pool, KvMemory& memory,
                                                 Outputs& outputs, std::span<const SamplerOptions> samplers,
                                                 std::span<const std::vector<int32_t>> recent) override;
  std::unique_ptr<DeviceSpeculation> start_speculation(const SpeculatedTexts& texts, const DeviceDraft& draft) override;
  std::vector<int32_t> sample(Outputs& outputs, std::span<const SamplerOptions> samplers,
                              std::span<const std::vector<int32_t>> recent) override;
  void use() const override { gpu::use_device(runner_.device()); }
  std::string name() const override { return name_; }
  int64_t step_weight_bytes() const override { return runner_.model().step_bytes(runner_.plan()); }
  ExpertHits expert_hits() override { return runner_.expert_hits(); }
  int64_t free_bytes() const override {
    gpu::use_device(runner_.device());
    return gpu::free_bytes();
  }
  std::vector<std::string> kernels(const KvLayerConfig& layer) const override;

 private:
  static constexpr int kRowsAtOnce = 32;  // samplers of sample(): each has buffers for a vocabulary

  const std::string name_;
  CudaRunner runner_;
  std::vector<std::unique_ptr<SamplingWorkspace>> workspaces_;
  std::unique_ptr<SpeculationWorkspace> speculation_workspace_;
  std::optional<DeviceSampler> row_sampler_;
  gpu::Buffer row_tokens_;
};

/// Refuses rows that the kernels here cannot run.
void check_rows(const KvLayerConfig& layer) {
  const bool in_fragments = device_tiles(layer).ok;
  const KvLayouts layouts(layer, in_fragments);
  const bool runs = in_fragments
                        ? can_run_tile_attn(layouts.k.tiles, layouts.v.tiles)
                        : reads_rows_in_f16(layouts.k.tiles, layer.v_is_k ? layouts.k.tiles : layouts.v.tiles) ||
                              can_run_rows_attn(layer.head_dim);
  if (layer.n_kv_heads > 0 && !runs)
    throw_error(ErrorKind::usage,
                "{} cache: this device has too little shared memory for attention over rows of {} values (use a format "
                "of fewer bits, or the CPU)",
                layer.k.format->name, layer.head_dim);
  for (const KvSide side : kKvSides)
    if (const KvSideConfig& of = layer.side(side);
        of.policy.rounding == KvRounding::weighted && !can_weigh_rows(of.format->name, layer.head_dim))
      throw_error(ErrorKind::usage,
                  "a GPU rounds {} rows of up to {} values weighted, rows of this model have {} (add :rounding=nearest "
                  "to the format, or use the CPU)",
                  of.format->name, kMaxDeviceHeadDim, layer.head_dim);
  for (const KvSide side : kKvSides)
    if (!can_calibrate(layouts.side(side).tiles))
      throw_error(
          ErrorKind::usage,
          "{} cache: this device has too little shared memory to calibrate rows of {} values (use a format that "
          "needs no calibration, or the CPU)",
          layer.side(side).format->name, layer.head_dim);
}

std::unique_ptr<KvMemory> CudaBackend::open_memory(std::span<const KvLayerConfig> layers,
                                                   std::span<const KvMetricView> metrics, PageNumbers n_pages,
                                                   SlotNumbers slots) {
  gpu::use_device(runner_.device());
  for (const KvLayerConfig& layer : layers) check_rows(layer);
  // A layer that reads another one's rows comes when these hold the whole step, and the exact rows of its first tokens
  // may be gone.
  if (runner_.plan().shares_kv())
    for (const KvLayerConfig& layer : layers)
      for (const KvSide side : kKvSides)
        if (KvLayout(layer, side, false).tiles.ring_tiles > 0)
          throw_error(ErrorKind::usage,
                      "{} cache: a GPU runs layers that share K and V with formats that keep no exact window (f16, "
                      "q8_0, q4_0), or without a window (or use the CPU)",
                      layer.side(side).format->name);
  const int64_t needed = 4 * int64_t(slots.n) * n_pages.full + cache_bytes(layers, true, n_pages, slots);
  if (const int64_t free = gpu::free_bytes(); needed > free)
    throw_error(ErrorKind::no_memory,
                "{}: the KV cache needs {:.1f} GiB, {:.1f} GiB are free (a smaller n_ctx, fewer sequences or a cache "
                "format of fewer bits)",
                name_, double(needed) / (1 << 30), double(free) / (1 << 30));
  const gpu::MemoryLabel label(gpu::MemoryOf::cache);
  return std::make_unique<DeviceKvMemory>(runner_.stream(), layers, metrics, n_pages, slots);
}

std::unique_ptr<DeviceSampling> CudaBackend::start_sampling(std::span<const SeqId> seqs, SequencePool& pool,
                                                            KvMemory& memory, Outputs& outputs,
                                                            std::span<const SamplerOptions> samplers,
                                                            std::span<const std::vector<int32_t>> recent) {
  gpu::use_device(runner_.device());
  const gpu::MemoryLabel label(gpu::MemoryOf::sampling);
  const int n = int(seqs.size());
  auto& rows = static_cast<CudaOutputs&>(outputs);
  RIDGE_CHECK(rows.n_rows() == n, "sampling from {} rows of {} sequences", rows.n_rows(), n);
  const auto is_free = [&](const std::unique_ptr<SamplingWorkspace>& workspace) {
    return !workspace->taken && workspace->n_seqs == n;
  };
  auto found = std::ranges::find_if(workspaces_, is_free);
  if (found == workspaces_.end())
    found =
        workspaces_.insert(found, std::make_unique<SamplingWorkspace>(n, padded_rows(n, runner_.options().least_rows),
                                                                      runner_.plan().vocab_size, runner_.plan().n_ids));
  SamplingWorkspace& workspace = **found;
  runner_.stream().synchronize();
  for (int i = 0; i < n; ++i) workspace.sampler.set(runner_.stream(), i, samplers[size_t(i)], recent[size_t(i)]);
  workspace.ring.reset(runner_.stream());
  return std::make_unique<CudaSampling>(runner_, workspace, seqs, pool, static_cast<DeviceKvMemory&>(memory), rows);
}

std::unique_ptr<DeviceSpeculation> CudaBackend::start_speculation(const SpeculatedTexts& texts,
                                                                  const DeviceDraft& draft) {
  auto* const head = dynamic_cast<CudaBackend*>(&draft.backend);
  if (!head || head->runner_.device() != runner_.device() || runner_.is_watched() || head->runner_.is_watched())
    return nullptr;
  gpu::use_device(runner_.device());
  const gpu::MemoryLabel label(gpu::MemoryOf::sampling);
  auto& workspace = speculation_workspace_;
  if (workspace && workspace->taken) return nullptr;
  const int n_texts = int(texts.texts.size());
  const ModelPlan& of_head = head->runner_.plan();
  if (!workspace || workspace->n_texts < n_texts || workspace->head_vocab != of_head.vocab_size)
    workspace = std::make_unique<SpeculationWorkspace>(n_texts, runner_.plan(), of_head);
  return std::make_unique<CudaSpeculation>(runner_, head->runner_, *workspace, texts, draft);
}

std::vector<int32_t> CudaBackend::sample(Outputs& outputs, std::span<const SamplerOptions> samplers,
                                         std::span<const std::vector<int32_t>> recent) {
  gpu::use_device(runner_.device());
  const gpu::MemoryLabel label(gpu::MemoryOf::sampling);
  auto& rows = static_cast<CudaOutputs&>(outputs);
  const auto n = ssize(samplers);
  RIDGE_CHECK(rows.n_rows() == n, "{} samplers for {} rows", n, rows.n_rows());
  if (!row_sampler_) row_sampler_.emplace(kRowsAtOnce, runner_.plan().vocab_size, runner_.plan().n_ids);
  auto* const sampled = row_tokens_.ensure<int32_t>(n);
  for (int64_t first = 0; first < n; first += kRowsAtOnce) {
    const int count = int(std::min<int64_t>(n - first, kRowsAtOnce));
    for (int i = 0; i < count; ++i)
      row_sampler_->set(runner_.stream(), i, samplers[size_t(first + i)], recent[size_t(first + i)]);
    row_sampler_->sample(runner_.stream(), count, rows.on_device() + first * runner_.plan().vocab_size,
                         sampled + first);
  }
  std::vector<int32_t> tokens(samplers.size());
  gpu::download(runner_.stream(), tokens.data(), sampled, 4 * n);
  runner_.stream().synchronize();
  return tokens;
}

std::vector<std::string> CudaBackend::kernels(const KvLayerConfig& layer) const {
  std::string few, many;
  const auto add = [](std::string& to, const std::vector<std::string_view>& names) {
    for (const std::string_view name : names) {
      if (to.find(name) != std::string::npos) continue;
      if (!to.empty()) to += '+';
      to += name;
    }
  };
  const CudaModel& model = runner_.model();
  const DeviceMatmul* const all[] = {&model.layers[0].qkv, &model.layers[0].delta_in, &model.layers[0].gate_up,
                                     &model.layers[0].down, &model.output};
  for (const DeviceMatmul* product : all) {
    add(few, product->kernels(1));
    add(many, product->kernels(kFewTokens + 1));
  }
  const auto attention = [&](int n_new) { return choose_device_attention({layer, n_new}).name; };
  const std::string_view of_step = attention(1), of_prompt = attention(kShortTokens + 1);
  std::vector<std::string> names{
      "gemv=" + few, "gemm=" + many,
      fmt::format("attention={}",
                  of_step == of_prompt ? std::string(of_step) : fmt::format("{}+{}", of_step, of_prompt)),
      runner_.options().overlap ? "launch=graph-overlap" : "launch=graph"};
  if (runner_.options().least_rows > 1) names.emplace_back("rows=four");
  std::string of_experts;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const CudaLayer& layer_of = model.layers[i];
    if (runner_.options().int_experts && has_late_choice(layer_of, runner_.plan().layers[i].experts))
      add(of_experts, {"ints"});
    if (runner_.plan().layers[i].experts.on_host) add(of_experts, {"cpu"});
    if (layer_of.slot >= 0) add(of_experts, {"streamed"});
    if (layer_of.cached.bytes() > 0) add(of_experts, {"cached"});
    add(of_experts, layer_of.experts.gate_up.kernels());
    add(of_experts, layer_of.experts.down.kernels());
  }
  std::string of_delta, of_mamba;
  for (const LayerPlan& of : runner_.plan().layers) {
    if (of.mixer == MixerKind::delta) of_delta = has_delta_chunks(of.delta) ? "delta=parts+chunks" : "delta=parts";
    if (of.mixer == MixerKind::mamba) of_mamba = has_mamba_chunks(of.mamba) ? "mamba=scan+chunks" : "mamba=scan";
  }
  for (const std::string& of : {of_delta, of_mamba})
    if (!of.empty()) names.push_back(of);
  if (!of_experts.empty()) names.push_back("experts=" + of_experts);
  return names;
}

/// Refuses models that the kernels here cannot run.
void check_supported(const ModelPlan& plan) {
  for (const LayerPlan& layer : plan.layers) {
    const bool is_latent = layer.mixer == MixerKind::latent;
    const ExpertsPlan& experts = layer.experts;
    const auto refuse = [](std::string_view what) {
      throw_error(ErrorKind::usage, "a GPU does not compute {} (use the CPU)", what);
    };
    if (layer.mixer == MixerKind::conv && layer.conv.kernel > kMostDeltaTaps)
      refuse(fmt::format("short convolutions of more than {} tokens", kMostDeltaTaps));
    if (layer.mixer == MixerKind::mamba && !can_run_mamba(layer.mamba))
      refuse(fmt::format("Mamba2 of heads of {} x {}", layer.mamba.head_dim, layer.mamba.state_dim));
    if (experts.n_experts > kMostExperts || experts.rule.n_used > kMostUsedExperts)
      throw_error(ErrorKind::usage,
                  "a GPU runs up to {} experts a layer and {} a token, this model has {} and {} (use the CPU)",
                  kMostExperts, kMostUsedExperts, experts.n_experts, experts.rule.n_used);
    if (const int most = is_latent ? kMostLatentDim : kMostRowsHeadDim; layer.attention.head_dim > most)
      throw_error(ErrorKind::usage, "a GPU runs {} up to {}, this model has {} (use the CPU)",
                  is_latent ? "latent rows" : "head_dim", most, layer.attention.head_dim);
    if (layer.latent.index.top_k > 0) refuse("keys that queries choose by an index");
    if (layer.attention.gate && layer.attention.qk_norm_whole)
      throw_error(ErrorKind::usage,
                  "a GPU does not compute a gate of the attention's output with a norm of all query heads "
                  "together (use the CPU)");
    if (layer.delta.kernel > kMostDeltaTaps)
      throw_error(ErrorKind::usage,
                  "a GPU runs convolutions of up to {} tokens in the delta rule, this model has {} (use the CPU)",
                  kMostDeltaTaps, layer.delta.kernel);
    if (layer.delta.key_dim > kMostDeltaKeys || layer.delta.value_dim > kMostDeltaValues)
      throw_error(ErrorKind::usage,
                  "a GPU runs heads of the delta rule of up to {}x{}, this model has {}x{} (use the CPU)",
                  kMostDeltaKeys, kMostDeltaValues, layer.delta.key_dim, layer.delta.value_dim);
  }
}

/// Refuses what several devices do not compute together.
void check_ranks(const ModelPlan& plan) {
  const auto refuse = [](std::string_view what) {
    throw_error(ErrorKind::usage, "several GPUs do not compute {} together (use one, or the CPU)", what);
  };
  if (plan.layer_norm) refuse("LayerNorm");
  if (plan.shares_kv()) refuse("layers that share K and V");
  for (const LayerPlan& of : plan.layers) {
    if (of.attention.qk_norm_after_rope) refuse("norms of q and k heads behind RoPE");
    if (of.experts.beside_dense) refuse("experts beside a dense feed-forward");
    if (of.d_input > 0) refuse("embeddings of layers");
  }
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int device, const ModelPlan& plan, const Weights& weights,
                                           std::span<const std::string> kernels, std::optional<CudaRank> rank,
                                           CpuContext* host) {
  DeviceOptions options = parse_device_kernels(kernels);
  options.host = host;
  const gpu::DeviceReport report = gpu::query_devices();
  if (device < 0 || size_t(device) >= report.devices.size())
    throw_error(ErrorKind::no_device, "device {} is not available: {} (use the CPU)", gpu::device_text(device),
                report.devices.empty() ? report.why_none : fmt::format("there are {} devices", report.devices.size()));
  check_supported(plan);
  if (rank) check_ranks(plan);
  if (rank && options.least_rows > 1)
    throw_error(ErrorKind::usage, "kernel rows=four (--exact) is for one GPU (leave it out, or name one GPU)");
  check_device_kernels(weights, options.kernels);
  gpu::use_device(device);
  const int64_t needed = CudaModel::upload_bytes(plan, weights, options.kernels), free = gpu::free_bytes();
  if (needed > free)
    throw_error(ErrorKind::no_memory,
                "device {}: the weights need {:.1f} GiB there, {:.1f} GiB are free (use a smaller model or the CPU)",
                gpu::device_text(device), double(needed) / (1 << 30), double(free) / (1 << 30));
  const gpu::MemoryLabel label(gpu::MemoryOf::weights);
  return std::make_unique<CudaBackend>(device, gpu::device_text(device) + " " + report.devices[size_t(device)].name,
                                       plan, weights, options, std::move(rank));
}

std::unique_ptr<Backend> make_cuda_backend(int device, const ModelPlan& plan, const Weights& weights,
                                           std::span<const std::string> kernels, CpuContext* host) {
  return make_cuda_backend(device, plan, weights, kernels, std::nullopt, host);
}

int64_t cuda_weight_bytes(const ModelPlan& plan, const Weights& weights, std::span<const std::string> kernels) {
  const DeviceOptions options = parse_device_kernels(kernels);
  check_supported(plan);
  check_device_kernels(weights, options.kernels);
  return CudaModel::upload_bytes(plan, weights, options.kernels);
}

}  // namespace ridge
