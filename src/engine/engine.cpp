#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <map>
#include <set>

#include "base/limits.h"
#include "base/seconds.h"
#include "engine/cuda_process_rank.h"
#include "engine/device_name.h"
#include "engine/finite.h"
#include "engine/kv_state.h"
#include "engine/lead.h"
#include "engine/rank_device.h"
#include "io/text.h"
#include "model/expert_place.h"
#include "op/cache/rounding.h"
#include "op/kernel_tables.h"
#include "op/norm_rope/norm_rope.h"

namespace ridge {
namespace {

int checked_threads(int n) {
  if (n < 0 || n > 1024)
    throw_error(ErrorKind::usage, "n_threads {} is out of range (1 to 1024, 0: one per processor)", n);
  return n;
}

/// Refuses weights that would not fit, before they are made.
void require_memory(int64_t bytes, const std::string& path, std::string_view why) {
  const int64_t free = free_memory(0);
  if (bytes <= free) return;
  const auto gib = [](int64_t n) { return double(n) / (1 << 30); };
  throw Error(ErrorKind::no_memory,
              four_parts("cannot load the model", path,
                         fmt::format("{} {:.2f} GiB, {:.2f} GiB of memory are free", why, gib(bytes), gib(free)),
                         "use a smaller model, or a format of fewer bits"));
}

int64_t bytes_to_pack(const Weights& weights, Isa isa) {
  int64_t bytes = 0;
  for_each_matrix(weights, [&](const Linear& m, std::string_view) { bytes += m.panels ? 0 : packed_bytes(m, isa); });
  return bytes;
}

ModelInfo describe(const std::string& path, LoadedModel& model, const CpuContext& context, const ModelSlice* slice) {
  const Config& c = model.config;
  ModelInfo info{.path = path,
                 .name = c.name,
                 .arch = c.arch,
                 .weight_format = "",
                 .n_layers = c.n_layers,
                 .n_heads = c.n_heads,
                 .n_kv_heads = c.n_kv_heads,
                 .head_dim = c.head_dim,
                 .d_model = c.d_model,
                 .d_ff = c.d_ff,
                 .vocab_size = c.vocab_size,
                 .n_ctx_train = c.n_ctx_train,
                 .n_cached_sides = c.kv_rank > 0 ? 1 : 2,
                 .n_cached_layers = c.n_cached_layers(),
                 .n_ranks = slice ? slice->n_ranks() : 1,
                 .n_stages = slice ? slice->n_stages : 1,
                 .tied_output = c.tied_output,
                 .n_params = model.weights.n_params,
                 .weight_bytes = model.weights.stored_bytes,
                 .packing = model.packing,
                 .unread_fields = model.unread_fields,
                 .has_tokenizer = model.tokenizer.has_value(),
                 .add_bos = model.tokenizer && model.tokenizer->spec().add_bos,
                 .device = "cpu",
                 .isa = std::string(isa_name(context.isa)),
                 .n_threads = context.pool.size()};
  std::map<int, int> n_cached;  // by head_dim
  for (int i = 0; i < c.n_layers; ++i)
    if (c.has_layer(i) && c.attends(i) && c.has_kv(i))
      n_cached[c.head_dim_of(i)] += info.n_cached_sides * c.kv_heads_of(i);
  for (const auto& [head_dim, n_heads] : n_cached) info.cached_heads.push_back({head_dim, n_heads});
  std::map<std::string_view, int64_t> by_format;
  std::set<const std::byte*> packed;  // layers may share matrices
  for_each_matrix(model.weights, [&](Linear& m, std::string_view) {
    const bool repacked = m.int8_activations && model.weights.ternary_source;
    by_format[repacked ? model.weights.ternary_source->name : m.format->name] += m.n_out * m.n_in;
    if (m.panels && packed.insert(m.panels).second) info.packed_bytes += packed_bytes(m, context.isa);
  });
  info.decode_weight_bytes =
      decode_matrix_bytes(model.weights, slice ? slice->experts_used(c.n_experts_used) : c.n_experts_used);
  const auto most =
      std::max_element(by_format.begin(), by_format.end(), [](auto& a, auto& b) { return a.second < b.second; });
  info.weight_format = most->first;
  return info;
}

}  // namespace

void check_tokens(std::span<const int32_t> tokens, int vocab_size) {
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab_size)
      throw_error(ErrorKind::usage, "token id {} is outside the vocabulary of {}", token, vocab_size);
}

/// Compares the model with that of the other ranks, and keeps this one's part of it, or the whole to lead with.
void Engine::take_slice() {
  const Config& c = loaded_.config;
  const double seconds = file_seconds(*ranks_);
  ranks_->require_same("the model", fmt::format("{:016x}", hash(c.n_ctx_train)), "give every rank the same file",
                       seconds);
  ranks_->require_same("the instruction set", std::string(isa_name(context_.isa)),
                       "add --isa with the least of them: ranks must round alike", seconds);
  slice_ = plan_slice(c, loaded_.weights, ranks_->rank(), ranks_->size(), ranks_->n_stages()).or_throw();
  if (!leads()) apply_slice(*slice_, loaded_.config, loaded_.weights);
}

/// Leaves experts in host memory, as the options ask, and packs them for the CPU that will compute them.
void Engine::keep_experts(const std::string& path, const LoadOptions& options) {
  const ExpertPlace place{options.n_cpu_moe, options.moe_device_gib, options.moe_cache_gib};
  if (!place.any()) return;
  if (devices_.size() != 1 || ranks_)
    throw_error(
        ErrorKind::usage,
        "--n-cpu-moe, --moe-device-gib and --moe-cache-gib keep experts of a model on one GPU in host memory: {}",
        on_device() ? "several GPUs hold all experts (leave the option out, or name one GPU)"
                    : "on the CPU all experts are there (leave the option out, or add --device cuda)");
  place_experts(place, loaded_.weights, plan_);
  experts_context_.emplace(checked_threads(options.n_threads));
  require_memory(host_expert_bytes(plan_, loaded_.weights, experts_context_->isa).memory, path,
                 "experts in host memory take");
  const auto start = std::chrono::steady_clock::now();
  pack_host_experts(*experts_context_, plan_, loaded_.weights);
  pack_seconds_ = seconds_since(start);
}

void Engine::pack(Weights& weights) {
  const auto start = std::chrono::steady_clock::now();
  pack_weights(context_, weights);
  pack_seconds_ = seconds_since(start);
}

/// The backend of this rank's slice. Who leads has cut it from the whole model, and packs it here.
std::unique_ptr<Backend> Engine::make_rank(const ModelPlan& plan, Weights& weights, const LoadOptions& options) {
  if (on_device()) return make_cuda_process_rank(devices_[0], plan, weights, options.kernels, *ranks_, *slice_);
  if (leads()) {
    pack(weights);
    drop_unread_rows(weights);
  }
  return make_cpu_backend(context_, plan, weights, ranks_, &*slice_);
}

uint64_t Engine::hash(int n_ctx) const {
  std::call_once(identified_, [&] { identity_ = identify(loaded_.config, loaded_.weights); });
  return identity_.of(n_ctx);
}

Engine::Engine(const std::string& path, const LoadOptions& options, Ranks* ranks)
    : ranks_(ranks),
      context_(checked_threads(options.n_threads),
               parse_devices(options.device).empty() ? find_isa(options.isa).or_throw() : Isa::scalar),
      devices_(parse_devices(options.device)) {
  const auto start = std::chrono::steady_clock::now();
  if (on_device() && !options.isa.empty())
    throw Error(ErrorKind::usage, "isa chooses kernels of the CPU: leave it out with device cuda");
  check_stages(devices_, options.n_stages);
  if (!on_device())
    for (const std::string& choice : options.kernels) force_kernel(kernel_tables(), choice, context_.forced);
  if (leads()) lead_load(*ranks_, path, options);
  if (on_device() && ranks_) devices_ = {device_of_rank(*ranks_, options.device)};
  constexpr std::string_view kSynth = "synth:";
  const bool is_synth = path.starts_with(kSynth);
  if (is_synth && !on_device()) {
    const SynthPlan synth = plan_synth_model(path.substr(kSynth.size())).or_throw();
    if (!synth.shared) require_memory(synth.decode_matrix_bytes(), path, "its matrices take");
  }
  loaded_ = is_synth ? make_synth_model(context_, path.substr(kSynth.size()),
                                        ranks_ ? SynthMatrices::rows : SynthMatrices::packed)
                           .or_throw()
                     : load_model(path).or_throw();
  Weights& weights = loaded_.weights;
  if (options.float_activations)
    for_each_matrix(weights, [](Linear& m, std::string_view) { m.int8_activations = false; });
  if (ranks_) take_slice();
  plan_ = make_plan(loaded_.config, weights.rope_factors, weights.long_rope_factors);
  keep_experts(path, options);
  // A device reads rows as stored, so the CPU packs nothing for it. Who leads packs its slice alone.
  if (!on_device() && !leads()) {
    require_memory(bytes_to_pack(weights, context_.isa), path, "matrices packed for this processor take");
    pack(weights);
  }
  // Those of a synth: model, as of a whole one; those of BitNet, of which a rank has a part and nothing reads them.
  if (slice() && (is_synth || slice_->gathers)) drop_unread_rows(weights);
  else if (slice()) drop_unread_buffers(weights);
  if (devices_.size() > 1)
    backend_ =
        make_cuda_backend(devices_, options.n_stages, loaded_.config, weights, options.kernels, options.rank_timeout_s);
  else if (leads())
    backend_ = make_leading_backend(loaded_.config, weights, *slice_, *ranks_, on_device(),
                                    [&](const ModelPlan& plan, Weights& own) { return make_rank(plan, own, options); });
  else if (ranks_) backend_ = make_rank(plan_, weights, options);
  else if (on_device())
    backend_ = make_cuda_backend(devices_[0], plan_, weights, options.kernels,
                                 experts_context_ ? &*experts_context_ : nullptr);
  else backend_ = make_cpu_backend(context_, plan_, weights);
  info_ = describe(path, loaded_, context_, slice());
  if (experts_context_) {
    const HostExpertBytes bytes = host_expert_bytes(plan_, loaded_.weights, experts_context_->isa);
    info_.n_cpu_moe = bytes.n_layers;
    info_.n_cached_experts = bytes.n_cached;
    info_.host_step_bytes = bytes.step;
  }
  if (leads()) info_.n_ranks = ranks_->size(), info_.n_stages = ranks_->n_stages();
  if (on_device()) {
    info_.device = backend_->name();
    info_.n_stages = options.n_stages;
    info_.isa.clear();
  }
  if (on_device() || leads()) info_.decode_weight_bytes = backend_->step_weight_bytes();
  info_.pack_seconds = pack_seconds_;
  info_.load_seconds = seconds_since(start);
}

const io::Tokenizer& Engine::tokenizer() const {
  if (!loaded_.tokenizer)
    throw Error(ErrorKind::usage, four_parts("text cannot become tokens, nor tokens text", info_.path,
                                             "the model has no tokenizer", "pass token ids, or use a model with one"));
  return *loaded_.tokenizer;
}

std::vector<int32_t> Engine::tokenize(std::string_view text, bool add_special, bool parse_special) const {
  std::vector<int32_t> ids = tokenizer().encode(text, add_special, parse_special);
  const auto outside = std::ranges::find_if(ids, [&](int32_t id) { return id >= plan().vocab_size; });
  if (outside == ids.end()) return ids;
  throw_error(ErrorKind::usage, "the text has the token {} ({}), for which the embedding has no row (leave it out)",
              io::in_quotes(tokenizer().piece(*outside, true)), *outside);
}

const KvMetric* Engine::kv_metric(std::span<const KvLayerConfig> layers) {
  const auto weighted = [](const KvLayerConfig& layer) {
    return layer.k.policy.rounding == KvRounding::weighted || layer.v.policy.rounding == KvRounding::weighted;
  };
  if (std::ranges::none_of(layers, weighted)) return nullptr;
  if (slice_ && slice_->size > 1 && (slice_->gathers || slice_->kv_copies > 1 || loaded_.config.qk_norm_whole))
    throw_error(
        ErrorKind::usage,
        "--tp {}: weighted rounding needs all query heads of a KV head and their output columns on one rank (use "
        "another rounding, or fewer ranks)",
        slice_->size);
  if (!kv_metric_) kv_metric_ = make_kv_metric(context_, loaded_.config, loaded_.weights, plan_);
  return &*kv_metric_;
}

const std::string& Engine::why_not_finite() {
  if (!why_not_finite_.empty()) return why_not_finite_;
  const std::string tensor = find_not_finite(context_, loaded_.weights);
  why_not_finite_ =
      tensor.empty() ? four_parts("", info_.path, "all weights are finite, so activations overflow",
                                  "--check-finite names the first layer where they do")
                     : four_parts("", info_.path, tensor, "the file is damaged or was converted wrongly: get it again");
  return why_not_finite_;
}

std::vector<KvMetricView> metric_views(const KvMetric* metric, int n_layers) {
  std::vector<KvMetricView> views;
  for (int i = 0; metric && i < n_layers; ++i)
    views.push_back({metric->layer(KvSide::k, i), metric->layer(KvSide::v, i)});
  return views;
}

std::unique_ptr<HostKvMemory> Engine::open_host_memory(std::span<const KvLayerConfig> layers, PageNumbers n_pages,
                                                       SlotNumbers slots) {
  const KvMetric* const metric = kv_metric(layers);
  const RoundRow round = metric ? select_round_row(context_, common_head_dim(layers)) : nullptr;
  return std::make_unique<HostKvMemory>(layers, metric_views(metric, int(layers.size())), round, n_pages, slots);
}

std::unique_ptr<SequencePool> Engine::open_pool(std::span<const KvLayerConfig> layers, PageNumbers n_pages,
                                                SlotNumbers slots, int n_ctx) {
  for (const LayerPlan& layer : plan_.layers)
    if (const int length = layer.attention.position_length; on_device() && length > 0 && n_ctx > length)
      throw_error(ErrorKind::usage,
                  "a GPU does not compute queries that grow with the position, as this model's do beyond {} "
                  "positions (a context of at most {}, or the CPU)",
                  length, length);
  auto memory = backend_->open_memory(layers, metric_views(kv_metric(layers), int(layers.size())), n_pages, slots);
  auto host_twin = [this, configs = std::vector(layers.begin(), layers.end())](int n) {
    return open_host_memory(configs, n, 1);
  };
  auto pool = std::make_unique<SequencePool>(std::move(memory), std::move(host_twin));
  pool->set_n_ctx(n_ctx);
  return pool;
}

std::unique_ptr<SequencePool> Engine::open_checked_pool(std::span<const KvLayerConfig> layers, PageNumbers n_pages,
                                                        int n_seqs, int n_ctx, int n_ubatch) {
  const int64_t needed = cache_bytes(layers, on_device(), n_pages, n_seqs), free = backend_->free_bytes();
  const auto gib = [](int64_t bytes) { return double(bytes) / (1 << 30); };
  if (needed > free)
    throw Error(ErrorKind::no_memory,
                fmt::format("a context of {} tokens needs a KV cache of {:.2f} GiB, {:.2f} GiB of memory are free (a "
                            "context of at most {} tokens, or a cache format of fewer bits)",
                            n_ctx, gib(needed), gib(free),
                            context_that_fits(layers, on_device(), n_ctx, n_ubatch, free / n_seqs)),
                "n_ctx");
  return open_pool(layers, n_pages, n_seqs, n_ctx);
}

void Engine::norm_hidden(View2<const float> x, View2<float> out) {
  (plan_.layer_norm ? layer_norm : rms_norm)(context_, x, loaded_.weights.output_norm.data(), plan_.norm_eps, out);
}

void Engine::turn_row(int layer, KvSide side, int n_ctx, int n_positions, float* row) {
  const AttentionPlan& a = plan_.layers[size_t(layer)].attention;
  const LatentPlan& latent = plan_.layers[size_t(layer)].latent;
  const bool is_index = side == KvSide::v;
  Rope rope = plan_.ropes[size_t(is_index ? latent.index.rope : plan_.rope_of(a, n_ctx))];
  rope.magnitude = 1;  // the row has it already
  const int32_t position = n_positions;
  const int dim = is_index ? latent.index.dim : a.head_dim;
  const int first = is_index ? 0 : latent.rank;  // a latent row has values in front that RoPE leaves
  apply_rope(context_, RopeAngles(context_, rope, {&position, 1}), dim, View2<float>(row + first, 1, dim - first));
}

}  // namespace ridge
