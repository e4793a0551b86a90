#include "lab/decide/plan.h"

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "base/limits.h"
#include "base/rng.h"
#include "engine/cpu_step_buffers.h"
#include "engine/cuda_step_buffers.h"
#include "engine/device_name.h"
#include "gpu/device_query.h"
#include "lab/store/machine.h"

namespace ridge::lab {
namespace {

constexpr int kHostUbatch = 512, kDeviceUbatch = 2048, kMostContext = 1 << 26;
constexpr const char* kMatrices = "weights";
constexpr const char* kEmbedding = "embedding";
constexpr const char* kVectors = "norms and biases";
constexpr const char* kPageLists = "page lists";
constexpr const char* kMetrics = "rounding metrics";
constexpr const char* kActivations = "activations";
constexpr const char* kScratch = "kernel scratch";
constexpr const char* kLogits = "logits";
constexpr const char* kSampling = "sampling";
constexpr const char* kPacking = "packing while loading";
constexpr const char* kRounding = "allocator rounding";
constexpr const char* kGraphs = "graphs, driver";
constexpr const char* kContext = "driver context";
/// Of the driver, to be fitted to what `--check` prints: the context with this program's code, and a recorded step's node.
constexpr int64_t kContextBytes = int64_t(512) << 20, kGraphNodeBytes = 1024;
constexpr const char* kDraftWeights = "draft weights";
constexpr const char* kDraftCache = "draft KV";
constexpr const char* kDraftBuffers = "draft buffers";
/// Of the pool, a page: its number among the free ones, its holders, its place in a sequence's list.
constexpr int64_t kPoolBytesOfPage = 3 * sizeof(int32_t);

int64_t sum_of(const std::vector<PlanPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t(0),
                         [](int64_t sum, const PlanPart& part) { return sum + part.bytes; });
}

/// Of the model, wherever its bytes are: what is held, not what the file has.
struct WeightBytes {
  int64_t matrices = 0;   ///< panels, and rows where kernels read rows
  int64_t embedding = 0;  ///< its rows
  int64_t vectors = 0;
};

int64_t vector_bytes(const Weights& w) {
  int64_t values = 0;
  for_each_vector(w, [&](const std::vector<float>& v) { values += ssize(v); });
  return 4 * values;
}

bool in_buffers(const Weights& w, const Linear& m) {
  return std::ranges::any_of(w.buffers, [&](const AlignedBuffer& buffer) {
    return m.rows >= buffer.data() && m.rows < buffer.data() + buffer.bytes();
  });
}

/// What loading will make of the matrices on the CPU.
WeightBytes planned_weights(const PlannedModel& model) {
  const Weights& w = model.loaded.weights;
  const bool tied = model.config().tied_output;
  WeightBytes sum{.embedding = w.embedding.bytes(), .vectors = vector_bytes(w)};
  // Rows that panels have replaced are dropped: a shape never keeps them, a mapping's pages go when memory is short.
  for_each_matrix(w, [&](const Linear& m, std::string_view) {
    const int64_t panels = packed_bytes(m, model.isa);
    const bool is_embedding = tied && &m == &w.output;
    // A rank drops rows that are packed, of shapes and of BitNet; of others it keeps the columns that it copied.
    const bool drops = model.slice && (model.is_shape || model.slice->gathers);
    const bool in_memory = model.is_shape ? m.int8_activations : in_buffers(w, m) || !m.rows;
    const bool keeps_rows = panels == 0 || (!drops && in_memory);
    sum.matrices += panels + (keeps_rows && !is_embedding ? m.bytes() : 0);
  });
  if (model.is_shape && !tied && !model.slice) sum.matrices += packed_bytes(w.embedding, model.isa);
  return sum;
}

/// What loading has made of them: all buffers, and rows in a mapping that kernels read.
WeightBytes found_weights(const Weights& w, bool tied) {
  WeightBytes sum{.embedding = w.embedding.bytes(), .vectors = vector_bytes(w)};
  for (const AlignedBuffer& buffer : w.buffers) sum.matrices += buffer.bytes();
  if (in_buffers(w, w.embedding)) sum.matrices -= w.embedding.bytes();
  for_each_matrix(w, [&](const Linear& m, std::string_view) {
    const bool is_embedding = tied && &m == &w.output;
    if (!m.panels && !is_embedding && !in_buffers(w, m)) sum.matrices += m.bytes();
  });
  return sum;
}

std::string side_name(bool is_k, std::string_view what) { return fmt::format("KV {} {}", is_k ? "K" : "V", what); }

/// Pages that were given back keep their places in lists.
int64_t page_list_bytes(std::span<const KvLayerConfig> layers, PageNumbers n_pages) {
  const auto slides = [](const KvLayerConfig& layer) { return layer.attention_window > 0; };
  int64_t bytes = 0;
  if (!std::ranges::all_of(layers, slides)) bytes += kPoolBytesOfPage * n_pages.full;
  if (std::ranges::any_of(layers, slides))
    bytes += kPoolBytesOfPage * n_pages.sliding + int64_t(sizeof(int32_t)) * (n_pages.full - n_pages.sliding);
  return bytes;
}

/// Parts of the caches of n_sessions sequences, in the order of a plan.
void add_kv(const PlannedModel& model, std::span<const KvLayerConfig> layers, PageNumbers n_pages, int n_slots,
            MemoryPlan& plan) {
  int64_t lists = page_list_bytes(layers, n_pages), metrics = 0, of_metrics = 0;
  for (const bool is_k : {true, false}) {
    int64_t coded = 0, ring = 0, sinks = 0, centres = 0, states = 0;
    for (const KvLayerConfig& config : layers) {
      const KvLayout layout(config, is_k, model.on_device() && device_tiles(config).ok);
      const int n = n_pages[page_class_of(layout.tiles)];
      coded += n * layout.page_bytes();
      ring += n_slots * layout.ring_bytes();
      sinks += n_slots * layout.sinks_bytes();
      centres += n_slots * (layout.centre_bytes() + layout.head_scale_bytes());
      states += n_slots * layout.state_bytes();
      lists += n * int64_t(sizeof(PageCounts));
      const int64_t form = 4 * int64_t(config.n_kv_heads) * config.head_dim * config.head_dim;
      if (config.n_kv_heads > 0) of_metrics += is_k || !config.v_is_k ? form : 0;
      if (layout.config.policy.rounding == KvRounding::weighted) metrics += layout.tiles.n_kv_heads > 0 ? form : 0;
    }
    plan.parts.push_back({side_name(is_k, "coded"), coded});
    plan.parts.push_back({side_name(is_k, "recent"), ring});
    plan.parts.push_back({side_name(is_k, "sinks"), sinks});
    plan.parts.push_back({side_name(is_k, "centres"), centres});
    if (is_k) plan.parts.push_back({"states", states});
  }
  // On a device: what its lists and tables take, which plan_memory() knows; the rest of the pool is on the host.
  plan.parts.push_back({kPageLists, model.on_device() ? 0 : lists});
  if (model.on_device()) {
    plan.parts.push_back({kMetrics, 0});
    return;
  }
  // The model's own forms beside those of the sides, turned into cache space.
  plan.parts.push_back({kMetrics, metrics > 0 ? metrics + of_metrics : 0});
}

int ubatch_of(const PlannedModel& model, int n_ubatch, int n_ctx) {
  return std::min(n_ctx, n_ubatch > 0 ? n_ubatch : model.on_device() ? kDeviceUbatch : kHostUbatch);
}

std::vector<KvLayerConfig> layers_of(const PlannedModel& model, const KvChoice& kv, int n_ctx) {
  return layer_configs(session_options(kv, n_ctx, 0), model.plan);
}

/// New tokens of a sequence in a decode step: the one that was drawn, and the guesses behind it.
int step_tokens(const PlannedDraft* draft, int n_ctx) { return std::min(n_ctx, draft ? draft->depth + 1 : 1); }

/// The steps that a plan is for: one of a prompt, one of all sequences at the end of their contexts.
std::vector<StepShape> planned_steps(int n_ctx, int n_sessions, int n_ubatch, int n_step, bool on_device = false) {
  // Attention of a device's prompts works with more parts behind a long past.
  if (on_device && n_ctx > n_ubatch)
    return {{.n_tokens = n_ubatch},
            {.n_tokens = n_ubatch, .n_past = n_ctx - n_ubatch},
            {.n_seqs = n_sessions, .n_tokens = n_step, .n_past = n_ctx - n_step, .n_logits = n_sessions * n_step}};
  return {{.n_tokens = n_ubatch},
          {.n_seqs = n_sessions, .n_tokens = n_step, .n_past = n_ctx - n_step, .n_logits = n_sessions * n_step}};
}

bool keeps_hidden(const PlannedDraft* draft) { return draft && draft->type == "mtp"; }
/// Of Outputs: hidden states of a prompt's step, as its buffer grows.
int64_t hidden_bytes(int64_t n_tokens, int d_model) { return 4 * n_tokens * d_model * 3 / 2; }

/// The head is a layer as the model's last one. Nearest rounding: the weighted one would need a metric of the head.
ModelPlan plan_of_head(const ModelPlan& target) {
  ModelPlan plan = target;
  plan.layers.assign(1, target.layers.back());
  return plan;
}
std::vector<KvLayerConfig> draft_layers(const PlannedDraft& draft, int n_ctx) {
  if (draft.model) return layer_configs(session_options(draft.kv, n_ctx, 0), draft.model->plan);
  std::vector<KvLayerConfig> layers = layer_configs(session_options(draft.kv, n_ctx, 0), draft.head_plan);
  for (KvLayerConfig& layer : layers) layer.k.policy.rounding = layer.v.policy.rounding = KvRounding::nearest;
  return layers;
}

/// Matrices and vectors of a head; the embedding and the output matrix are the model's.
int64_t head_bytes(const MtpHead& head, bool is_shape, Isa isa) {
  const Weights& w = head.weights;
  int64_t bytes = vector_bytes(w);
  const auto add = [&](const Linear& m) {
    const int64_t panels = packed_bytes(m, isa);
    const bool keeps_rows = panels == 0 || (is_shape ? m.int8_activations : in_buffers(w, m));
    bytes += panels + (keeps_rows ? m.bytes() : 0);
  };
  add(w.join);
  for_each_matrix(w, [&](const Linear& m, std::string_view) {
    if (&m != &w.output) add(m);
  });
  return bytes;
}
/// The same as it was loaded.
int64_t found_head_bytes(const MtpHead& head, const Weights& target) {
  const Weights& w = head.weights;
  int64_t bytes = vector_bytes(w);
  const Weights& owner = w.buffers.empty() && target.head ? *target.head : w;  // a shape's head stays the model's
  for (const AlignedBuffer& buffer : owner.buffers) bytes += buffer.bytes();
  const auto add = [&](const Linear& m) { bytes += !m.panels && !in_buffers(owner, m) ? m.bytes() : 0; };
  add(w.join);
  for_each_matrix(w, [&](const Linear& m, std::string_view) {
    if (&m != &w.output) add(m);
  });
  return bytes;
}

/// Of the parts of add_kv().
int64_t kv_bytes(const std::vector<PlanPart>& parts) {
  int64_t bytes = 0;
  for (const PlanPart& part : parts)
    if (part.name.starts_with("KV") || part.name == "states" || part.name == kPageLists) bytes += part.bytes;
  return bytes;
}

/// Adds what guessing takes: weights, caches of all sessions, and on the CPU buffers of steps and rows of logits.
void add_draft(const PlannedModel& target, const PlannedDraft& draft, MemoryPlan& plan, gpu::Allocations& driver) {
  const std::vector<KvLayerConfig> layers = draft_layers(draft, plan.n_ctx);
  const PlannedModel& runs_as = draft.model ? *draft.model : target;
  MemoryPlan cache;
  add_kv(runs_as, layers, pool_pages(layers, plan.n_ctx, 1, plan.n_ubatch), 1, cache);
  // Every session has a pool of its own; a model's own forms of rounding are made once.
  const int64_t metrics = cache.of(kMetrics), of_session = cache.total() - metrics;
  const ModelPlan& of = draft.model ? draft.model->plan : draft.head_plan;
  const Weights& w = draft.model ? draft.model->loaded.weights : draft.head.weights;
  int64_t weights = 0;
  if (target.on_device()) {
    const DeviceBuffers buffers =
        plan_device_buffers(of, w, layers, draft.model ? draft.model->place.kernels : std::vector<std::string>(),
                            planned_steps(plan.n_ctx, 1, plan.n_ubatch, 1, true), {.keeps_hidden = false});
    gpu::Allocations caches = plan_device_cache(layers, pool_pages(layers, plan.n_ctx, 1, plan.n_ubatch), 1), rows;
    rows.add(buffers.activations);
    rows.add(buffers.scratch);
    // Logits, and hidden states where a head proposes from its own, of every session.
    for (int i = 0; i < plan.n_sessions; ++i) {
      rows.add(buffers.logits);
      if (keeps_hidden(&draft)) rows.add(4 * int64_t(of.d_model));
    }
    plan.parts.push_back({kDraftWeights, buffers.weights.bytes});
    plan.parts.push_back({kDraftCache, plan.n_sessions * caches.bytes});
    plan.parts.push_back({kDraftBuffers, rows.bytes});
    plan.session_bytes += caches.bytes;
    driver.add(buffers.weights);
    for (int i = 0; i < plan.n_sessions; ++i) driver.add(caches);
    driver.add(rows);
    return;
  }
  if (draft.model) {
    const WeightBytes bytes = planned_weights(*draft.model);
    weights = bytes.matrices + bytes.embedding + bytes.vectors;
  } else {
    weights = head_bytes(draft.head, target.is_shape, target.isa);
  }
  plan.parts.push_back({kDraftWeights, weights});
  plan.parts.push_back({kDraftCache, plan.n_sessions * of_session + metrics});
  plan.session_bytes += of_session;
  const PlannedBuffers buffers = plan_step_buffers(of, w, layers, target.isa, target.place.n_threads,
                                                   planned_steps(plan.n_ctx, 1, plan.n_ubatch, 1));
  // A head runs in the model's own scratch.
  const int64_t shared = draft.model ? buffers.scratch : hidden_bytes(1, of.d_model) * plan.n_sessions;
  plan.parts.push_back({kDraftBuffers, buffers.activations + shared + plan.n_sessions * buffers.logits});
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace

int64_t MemoryPlan::total() const { return sum_of(parts); }
int64_t PlanCheck::total() const { return sum_of(found); }

int64_t MemoryPlan::of(std::string_view name) const {
  for (const PlanPart& part : parts)
    if (part.name == name) return part.bytes;
  return 0;
}

double PlanCheck::difference(const MemoryPlan& plan) const {
  return std::abs(double(total() - plan.total())) / double(total());
}

namespace {

/// The part of the model that the last rank of a stage has: parts are nearly equal, and the last one has what is left over.
ModelSlice last_slice(const LoadedModel& model, int n_ranks, int n_stages, int stage, ModelEnds ends) {
  const int last = (stage + 1) * n_ranks / n_stages - 1;
  return plan_slice(model.config, model.weights, last, n_ranks, n_stages, ends).or_throw();
}

/// The stage whose matrices take most.
ModelSlice largest_slice(const LoadedModel& model, int n_ranks, int n_stages, ModelEnds ends) {
  int64_t most = -1;
  ModelSlice largest;
  for (int stage = 0; stage < n_stages; ++stage) {
    ModelSlice slice = last_slice(model, n_ranks, n_stages, stage, ends);
    Config config = model.config;
    Weights weights = view_of(model.weights);
    apply_slice(slice, config, weights, true);
    int64_t bytes = decode_matrix_bytes(weights, config.n_experts);
    if (ends == ModelEnds::in_stages) bytes += weights.embedding.bytes();
    if (bytes < most) continue;
    most = bytes;
    largest = std::move(slice);
  }
  return largest;
}

}  // namespace

PlannedModel plan_model(const std::string& path, const LoadOptions& place, int n_ranks, int n_stages) {
  constexpr std::string_view kSynth = "synth:";
  PlannedModel model{.place = place, .is_shape = path.starts_with(kSynth)};
  if (parse_device(place.device)) {
    if (!place.isa.empty())
      throw Error(ErrorKind::usage, "isa chooses kernels of the CPU: leave it out with device cuda");
  } else {
    model.isa = std::min(detect_isa(), find_isa(place.isa).or_throw());
    if (place.n_threads == 0) model.place.n_threads = available_processors();
  }
  CpuContext context(1, model.isa);
  model.loaded = model.is_shape
                     ? make_synth_model(context, path.substr(kSynth.size()), SynthMatrices::shapes).or_throw()
                     : load_model(path).or_throw();
  if (n_ranks > 1) {
    const ModelEnds ends = model.on_device() ? ModelEnds::in_stages : ModelEnds::everywhere;
    model.slice = largest_slice(model.loaded, n_ranks, n_stages, ends);
    apply_slice(*model.slice, model.loaded.config, model.loaded.weights, true);
  }
  model.plan = make_plan(model.config(), model.loaded.weights.rope_factors, model.loaded.weights.long_rope_factors);
  return model;
}

std::shared_ptr<const PlannedDraft> plan_draft(const PlannedModel& target, const std::string& type,
                                               const std::string& path, const KvChoice& kv, int depth) {
  const auto draft = std::make_shared<PlannedDraft>();
  draft->type = type;
  draft->path = path;
  draft->depth = depth;
  draft->kv = kv;
  if (type == "draft") {
    draft->model = plan_model(path, target.place);
    if (draft->model->config().vocab_size > target.config().vocab_size)
      throw_error(ErrorKind::usage, "the draft model {} has a vocabulary of {}, the model one of {}", path,
                  draft->model->config().vocab_size, target.config().vocab_size);
  }
  if (type == "mtp") {
    CpuContext context(1, target.isa);
    draft->head = load_mtp_head(context, target.config(), target.loaded.weights, path).or_throw();
    draft->head_plan = plan_of_head(target.plan);
  }
  return draft;
}

namespace {

/// That a token takes on one rank, were they shared evenly.
int experts_of_rank(const PlannedModel& model) {
  const int n_used = model.config().n_experts_used;
  return model.slice ? model.slice->experts_used(n_used) : n_used;
}

}  // namespace

MemoryPlan plan_memory(const PlannedModel& model, const KvChoice& kv, int n_ctx, int n_sessions, int n_ubatch,
                       std::shared_ptr<const PlannedDraft> draft) {
  const Weights& w = model.loaded.weights;
  const std::vector<KvLayerConfig> layers = layers_of(model, kv, n_ctx);
  MemoryPlan plan{.kv = kv,
                  .draft = std::move(draft),
                  .n_ctx = n_ctx,
                  .n_sessions = n_sessions,
                  .n_ubatch = ubatch_of(model, n_ubatch, n_ctx),
                  .step_weight_bytes = decode_matrix_bytes(w, experts_of_rank(model))};
  DeviceBuffers buffers;
  if (model.on_device()) {
    // A step of sequences is at most kMostStepTokens long; the others of many sessions follow it.
    buffers =
        plan_device_buffers(model.plan, w, layers, model.place.kernels,
                            planned_steps(n_ctx, n_sessions, plan.n_ubatch, step_tokens(plan.draft.get(), n_ctx), true),
                            {.draws = !plan.draft, .keeps_hidden = keeps_hidden(plan.draft.get())});
    plan.parts.push_back({kMatrices, buffers.weights.bytes});
  } else {
    const WeightBytes weights = planned_weights(model);
    plan.parts = {{kMatrices, weights.matrices}, {kEmbedding, weights.embedding}, {kVectors, weights.vectors}};
  }
  add_kv(model, layers, pool_pages(layers, n_ctx, n_sessions, plan.n_ubatch), n_sessions, plan);
  const PageNumbers pages = {std::max(1, pages_for(layers, n_ctx)), most_sliding_pages(layers)};
  for (const KvLayerConfig& config : layers)
    for (const bool is_k : {true, false}) {
      const KvLayout layout(config, is_k, model.on_device() && device_tiles(config).ok);
      const int n = std::min(pages.full, pages[page_class_of(layout.tiles)]);
      plan.session_bytes += n * layout.page_bytes() + layout.slot_bytes();
      plan.step_kv_bytes += n_sessions * (kv_read_bytes(layout.tiles, n_ctx) + layout.state_bytes());
    }
  const PlannedDraft* const guesses = plan.draft.get();
  const bool has_cache = guesses && guesses->type != "lookup";
  if (!model.on_device()) {
    const PlannedBuffers of_cpu =
        plan_step_buffers(model.plan, w, layers, model.isa, model.place.n_threads,
                          planned_steps(n_ctx, n_sessions, plan.n_ubatch, step_tokens(guesses, n_ctx)),
                          model.slice ? &*model.slice : nullptr);
    plan.parts.push_back({kActivations, of_cpu.activations});
    plan.parts.push_back({kScratch, of_cpu.scratch});
    const int64_t hidden = keeps_hidden(guesses) ? hidden_bytes(plan.n_ubatch, model.plan.d_model) : 0;
    plan.parts.push_back({kLogits, of_cpu.logits + hidden});
  }
  gpu::Allocations driver;
  if (model.on_device()) {
    const gpu::Allocations caches =
        plan_device_cache(layers, pool_pages(layers, n_ctx, n_sessions, plan.n_ubatch), n_sessions);
    for (PlanPart& part : plan.parts)
      if (part.name == kPageLists) part.bytes += caches.bytes - kv_bytes(plan.parts);
    plan.parts.push_back({kActivations, buffers.activations.bytes});
    plan.parts.push_back({kScratch, buffers.scratch.bytes});
    plan.parts.push_back({kLogits, buffers.logits.bytes});
    plan.parts.push_back({kSampling, buffers.sampling.bytes});
    for (const gpu::Allocations& of :
         {buffers.weights, caches, buffers.activations, buffers.scratch, buffers.logits, buffers.sampling})
      driver.add(of);
  }
  if (has_cache) add_draft(model, *guesses, plan, driver);
  if (model.on_device()) {
    plan.parts.push_back({kPacking, std::max<int64_t>(0, buffers.weights.bytes + buffers.packing - plan.total())});
    plan.parts.push_back({kRounding, driver.driver_bytes() - driver.bytes});
    plan.parts.push_back({kGraphs, kGraphNodeBytes * buffers.n_graph_nodes});
    plan.parts.push_back({kContext, kContextBytes});
  }
  return plan;
}

namespace {

/// The largest n in [0, most] that fits; `fits` holds up to some n and not beyond.
template <class Fits>
int64_t largest(int64_t most, const Fits& fits) {
  int64_t low = 0;
  for (int64_t step = int64_t(1) << 40; step > 0; step /= 2)
    if (low + step <= most && fits(low + step)) low += step;
  return low;
}

}  // namespace

int largest_context(const PlannedModel& model, const KvChoice& kv, int n_sessions, int n_ubatch, int64_t memory,
                    const std::shared_ptr<const PlannedDraft>& draft) {
  const int64_t most = std::min<int64_t>(kMostContext, int64_t(INT32_MAX) / n_sessions * kPagePositions);
  return int(largest(
      most, [&](int64_t n) { return plan_memory(model, kv, int(n), n_sessions, n_ubatch, draft).total() <= memory; }));
}

int64_t most_sessions(const PlannedModel& model, const KvChoice& kv, int n_ctx, int n_ubatch, int64_t memory,
                      const std::shared_ptr<const PlannedDraft>& draft) {
  // Pages of all sequences are numbered in 32 bits.
  const int64_t most = INT32_MAX / std::max(1, pages_for(layers_of(model, kv, n_ctx), n_ctx));
  return largest(most,
                 [&](int64_t n) { return plan_memory(model, kv, n_ctx, int(n), n_ubatch, draft).total() <= memory; });
}

int64_t usable_memory(const LoadOptions& place) {
  const std::optional<int> device = parse_device(place.device);
  if (!device) return machine_info().available_bytes;
  return int64_t(gpu::query_devices().devices.at(size_t(*device)).memory_bytes);
}

std::vector<KvChoice> planned_formats(const PlannedModel& model) {
  std::vector<KvChoice> choices;
  for (const char* name : {"f16", "q8_0", "p8", "rotor-4", "rotor-3", "q4_0"}) {
    const KvChoice kv = parse_kv_choice(name).or_throw();
    const int group = find_kv_format(name).or_throw()->group;
    if (std::ranges::all_of(model.plan.layers,
                            [&](const LayerPlan& layer) { return layer.attention.head_dim % group == 0; }))
      choices.push_back(kv);
  }
  return choices;
}

namespace {

/// Bytes of a pool's caches with its lists.
int64_t found_kv(const SequencePool& pool, std::span<const KvLayerConfig> layers) {
  const KvMemory& memory = pool.memory();
  const PageNumbers n_pages = {memory.n_pages(PageClass::full), memory.n_pages(PageClass::sliding)};
  return memory.allocated_bytes() + page_list_bytes(layers, n_pages);
}

/// What proposers of all sessions hold after a prompt and a step, on a backend that they share.
struct FoundDraft {
  int64_t cache = 0, buffers = 0;
};
template <class OpenPool>
FoundDraft run_draft(Backend& backend, const MemoryPlan& plan, const ModelPlan& of,
                     std::span<const KvLayerConfig> layers, const OpenPool& open_pool) {
  FoundDraft found;
  const bool is_head = keeps_hidden(plan.draft.get());
  std::vector<float> hidden(is_head ? size_t(plan.n_ubatch) * size_t(of.d_model) : 0, 1.0f);
  std::vector<std::unique_ptr<Outputs>> outputs;
  for (int i = 0; i < plan.n_sessions; ++i) {
    const std::unique_ptr<SequencePool> pool = open_pool();
    outputs.push_back(backend.make_outputs());
    SeqId seq = pool->open().or_throw();
    const auto step = [&](int n_tokens) {
      const std::vector<int32_t> tokens(size_t(n_tokens), 1);
      const SeqTokens of_seq{seq, n_tokens};
      pool->reserve(seq, n_tokens).or_throw();
      const bool last = !is_head || n_tokens == 1;
      backend.run({.tokens = tokens,
                   .seqs = {&of_seq, 1},
                   .logits = last ? LogitRows::last : LogitRows::none,
                   .hidden = is_head && last,
                   .joined = {hidden.data(), is_head ? n_tokens : 0, of.d_model}},
                  *pool, *outputs.back());
    };
    if (i == 0) {
      step(plan.n_ubatch);
      pool->close(seq);
      seq = pool->open().or_throw();
    }
    pool->fill(seq, plan.n_ctx - 1, 1).or_throw();
    step(1);
    found.cache += found_kv(*pool, layers);
  }
  for (const auto& of_session : outputs) found.buffers += of_session->bytes();
  found.buffers += backend.step_buffers().activations + (is_head ? 0 : backend.step_buffers().scratch);
  return found;
}

/// The rounding forms of an engine's model and of a pool over it.
int64_t found_metrics(Engine& engine, std::span<const KvLayerConfig> layers, const SequencePool& pool) {
  const auto& host = static_cast<const HostKvMemory&>(pool.memory());
  int64_t bytes = 0;
  for (const bool is_k : {true, false})
    for (int i = 0; i < pool.memory().n_layers(); ++i)
      if (const KvTiles& t = host.tiles(i, is_k); t.metric)
        bytes += 4 * int64_t(t.n_kv_heads) * t.head_dim * t.head_dim;
  if (const KvMetric* of_model = engine.kv_metric(layers)) bytes += 4 * (ssize(of_model->k) + ssize(of_model->v));
  return bytes;
}

void check_draft(Engine& target, const MemoryPlan& plan, const LoadOptions& place, PlanCheck& check) {
  const PlannedDraft& draft = *plan.draft;
  const std::vector<KvLayerConfig> layers = draft_layers(draft, plan.n_ctx);
  const PageNumbers n_pages = pool_pages(layers, plan.n_ctx, 1, plan.n_ubatch);
  FoundDraft found;
  int64_t weights = 0;
  if (draft.model) {
    Engine engine(draft.path, place);
    const auto open = [&] { return engine.open_pool(layers, n_pages, 1, plan.n_ctx); };
    found = run_draft(engine.backend(), plan, engine.plan(), layers, open);
    found.cache += found_metrics(engine, layers, *open());
    const WeightBytes bytes = found_weights(engine.weights(), engine.config().tied_output);
    weights = bytes.matrices + bytes.embedding + bytes.vectors;
  } else {
    const MtpHead head = load_mtp_head(target.context(), target.config(), target.weights(), draft.path).or_throw();
    const auto backend = make_cpu_backend(target.context(), draft.head_plan, head.weights);
    found = run_draft(*backend, plan, draft.head_plan, layers, [&] {
      auto pool = std::make_unique<SequencePool>(backend->open_memory(layers, {}, n_pages, 1), [&layers](int n) {
        return std::make_unique<HostKvMemory>(layers, std::span<const KvMetricView>(), nullptr, n, 1);
      });
      pool->set_n_ctx(plan.n_ctx);
      return pool;
    });
    weights = found_head_bytes(head, target.weights());
  }
  check.found.push_back({kDraftWeights, weights});
  check.found.push_back({kDraftCache, found.cache});
  check.found.push_back({kDraftBuffers, found.buffers});
}

}  // namespace

namespace {

using gpu::MemoryOf;

/// What steps of a plan do on a backend of a device, over one pool.
void run_device_steps(Backend& backend, SequencePool& pool, const MemoryPlan& plan, int n_seqs, int n_step, bool draws,
                      bool is_head, int d_model, std::span<std::unique_ptr<Outputs>> outputs) {
  const bool hidden = keeps_hidden(plan.draft.get());
  const auto run = [&](std::span<const SeqTokens> seqs, LogitRows rows, bool keeps) {
    int64_t n = 0;
    for (const SeqTokens& s : seqs) {
      pool.reserve(s.seq, s.n_tokens).or_throw();
      n += s.n_tokens;
    }
    const std::vector<int32_t> tokens(size_t(n), 1);
    const std::vector<float> joined(is_head ? size_t(n * d_model) : 0, 1.0f);
    backend.run({.tokens = tokens,
                 .seqs = seqs,
                 .logits = rows,
                 .hidden = keeps,
                 .joined = {joined.data(), is_head ? n : 0, d_model}},
                pool, *outputs[0]);
  };
  for (const int n_past : {0, plan.n_ctx - plan.n_ubatch}) {
    if (n_past < 0) continue;
    const SeqTokens prompt{pool.open().or_throw(), plan.n_ubatch};
    if (n_past > 0) pool.fill(prompt.seq, n_past, 1).or_throw();
    run({&prompt, 1}, LogitRows::last, hidden && !is_head);
    pool.close(prompt.seq);
  }
  std::vector<SeqTokens> all;
  std::vector<SeqId> seqs;
  // Recorded steps run three times: launch by launch, recorded, again.
  const int n_left = draws ? 4 : 3 * n_step;
  for (int i = 0; i < n_seqs; ++i) {
    all.push_back({pool.open().or_throw(), n_step});
    seqs.push_back(all.back().seq);
    pool.fill(seqs.back(), std::max(1, plan.n_ctx - n_left), uint64_t(i)).or_throw();
  }
  if (!draws) {
    for (int i = 0; i < 3 && pool.length(seqs[0]) + n_step <= plan.n_ctx; ++i)
      run(all, n_step > 1 ? LogitRows::all : LogitRows::last, hidden);
    return;
  }
  run(all, LogitRows::last, false);
  const std::vector<SamplerOptions> samplers(seqs.size());
  const std::vector<std::vector<int32_t>> recent(seqs.size());
  const auto drawing = backend.start_drawing(seqs, pool, *outputs[0], samplers, recent);
  for (int step = 0; step < 4 && pool.length(seqs[0]) < plan.n_ctx; ++step) drawing->launch(step);
  drawing->finish();
}

/// Bytes of components now less those before.
int64_t grown(const std::array<gpu::Allocations, gpu::kMemoryUses>& before, MemoryOf what) {
  return gpu::memory_use()[size_t(what)].bytes - before[size_t(what)].bytes;
}
gpu::Allocations all_of(const std::array<gpu::Allocations, gpu::kMemoryUses>& uses) {
  gpu::Allocations all;
  for (const gpu::Allocations& use : uses) all.add(use);
  return all;
}

/// Weights, caches and buffers of those who guess, of all sessions.
struct DeviceDraftHeld {
  std::optional<Engine> engine;
  MtpHead head;
  std::unique_ptr<Backend> backend;
  std::vector<std::unique_ptr<SequencePool>> pools;
  std::vector<std::unique_ptr<Outputs>> outputs;
};
void check_device_draft(Engine& target, const MemoryPlan& plan, const LoadOptions& place, DeviceDraftHeld& held,
                        PlanCheck& check) {
  const PlannedDraft& draft = *plan.draft;
  const auto before = gpu::memory_use();
  Backend* backend = nullptr;
  if (draft.model) {
    held.engine.emplace(draft.path, place);
    backend = &held.engine->backend();
  } else {
    held.head = load_mtp_head(target.context(), target.config(), target.weights(), draft.path).or_throw();
    held.backend = make_cuda_backend(*parse_device(place.device), draft.head_plan, held.head.weights, {});
    backend = held.backend.get();
  }
  const std::vector<KvLayerConfig> layers = draft_layers(draft, plan.n_ctx);
  const PageNumbers n_pages = pool_pages(layers, plan.n_ctx, 1, plan.n_ubatch);
  for (int i = 0; i < plan.n_sessions; ++i) {
    std::unique_ptr<SequencePool> pool;
    if (held.engine) {
      pool = held.engine->open_pool(layers, n_pages, 1, plan.n_ctx);
    } else {
      pool = std::make_unique<SequencePool>(backend->open_memory(layers, {}, n_pages, 1), nullptr);
      pool->set_n_ctx(plan.n_ctx);
    }
    held.outputs.push_back(backend->make_outputs());
    run_device_steps(*backend, *pool, plan, 1, 1, false, !draft.model, target.plan().d_model,
                     std::span(held.outputs).last(1));
    held.pools.push_back(std::move(pool));
  }
  check.found.push_back({kDraftWeights, grown(before, MemoryOf::weights)});
  check.found.push_back({kDraftCache, grown(before, MemoryOf::cache)});
  check.found.push_back({kDraftBuffers, grown(before, MemoryOf::activations) + grown(before, MemoryOf::scratch) +
                                            grown(before, MemoryOf::logits)});
}

PlanCheck check_device_plan(const std::string& path, const MemoryPlan& plan, const LoadOptions& place) {
  const auto before = gpu::memory_use();
  const gpu::DriverMemory empty = gpu::driver_memory();
  Engine engine(path, place);
  const std::vector<KvLayerConfig> layers = layer_configs(session_options(plan.kv, plan.n_ctx, 0), engine.plan());
  const auto pool = engine.open_pool(layers, pool_pages(layers, plan.n_ctx, plan.n_sessions, plan.n_ubatch),
                                     plan.n_sessions, plan.n_ctx);
  std::vector<std::unique_ptr<Outputs>> outputs;
  outputs.push_back(engine.backend().make_outputs());
  const int n_step = step_tokens(plan.draft.get(), plan.n_ctx);
  run_device_steps(engine.backend(), *pool, plan, std::min(plan.n_sessions, kMostStepTokens / n_step), n_step,
                   !plan.draft, false, engine.plan().d_model, outputs);
  PlanCheck check;
  check.found.push_back({kMatrices, grown(before, MemoryOf::weights)});
  const KvMemory& memory = pool->memory();
  int64_t sides = 0;
  for (const bool is_k : {true, false}) {
    int64_t coded = 0, ring = 0, sinks = 0, centres = 0, states = 0;
    for (int i = 0; i < memory.n_layers(); ++i) {
      const KvLayout& l = memory.layout(i, is_k);
      const int64_t n = memory.n_slots();
      ring += n * l.ring_bytes();
      sinks += n * l.sinks_bytes();
      centres += n * (l.centre_bytes() + l.head_scale_bytes());
      states += n * l.state_bytes();
      coded += memory.n_pages(memory.page_class(i)) * l.page_bytes();
    }
    sides += coded + ring + sinks + centres + states;
    check.found.push_back({side_name(is_k, "coded"), coded});
    check.found.push_back({side_name(is_k, "recent"), ring});
    check.found.push_back({side_name(is_k, "sinks"), sinks});
    check.found.push_back({side_name(is_k, "centres"), centres});
    if (is_k) check.found.push_back({"states", states});
  }
  check.found.push_back({kPageLists, grown(before, MemoryOf::cache) - sides});
  check.found.push_back({kMetrics, 0});
  check.found.push_back({kActivations, grown(before, MemoryOf::activations)});
  check.found.push_back({kScratch, grown(before, MemoryOf::scratch)});
  check.found.push_back({kLogits, grown(before, MemoryOf::logits)});
  check.found.push_back({kSampling, grown(before, MemoryOf::sampling)});
  DeviceDraftHeld held;
  if (plan.draft && plan.draft->type != "lookup") check_device_draft(engine, plan, place, held, check);
  const gpu::Allocations all = all_of(gpu::memory_use()), old = all_of(before);
  const gpu::DriverMemory full = gpu::driver_memory();
  const int64_t rounding = all.driver_bytes() - all.bytes - (old.driver_bytes() - old.bytes);
  check.found.push_back({kPacking, plan.of(kPacking)});
  check.found.push_back({kRounding, rounding});
  // What the driver counts beyond allocations since the context was there: recorded steps, code that is loaded late.
  check.driver_bytes = full.used();
  check.found.push_back({kGraphs, full.used() - empty.used() - (all.bytes - old.bytes) - rounding});
  check.found.push_back({kContext, empty.used()});
  return check;
}

}  // namespace

PlanCheck check_plan(const std::string& path, const MemoryPlan& plan, const LoadOptions& place, Ranks* ranks) {
  if (parse_device(place.device)) return check_device_plan(path, plan, place);
  const int64_t before = resident_bytes();
  Engine engine(path, place, ranks);
  const std::vector<KvLayerConfig> layers = layer_configs(session_options(plan.kv, plan.n_ctx, 0), engine.plan());
  const PageNumbers n_pages = pool_pages(layers, plan.n_ctx, plan.n_sessions, plan.n_ubatch);
  const auto pool = engine.open_pool(layers, n_pages, plan.n_sessions, plan.n_ctx);
  const auto outputs = engine.backend().make_outputs();
  Rng rng(1);
  std::vector<int32_t> tokens;
  const auto run = [&](std::span<const SeqTokens> seqs, LogitRows rows) {
    tokens.clear();
    for (const SeqTokens& of : seqs) {
      pool->reserve(of.seq, of.n_tokens).or_throw();
      for (int i = 0; i < of.n_tokens; ++i) tokens.push_back(int32_t(rng.next() % uint64_t(engine.plan().vocab_size)));
    }
    engine.backend().run({.tokens = tokens, .seqs = seqs, .logits = rows, .hidden = keeps_hidden(plan.draft.get())},
                         *pool, *outputs);
  };
  const SeqTokens prompt{pool->open().or_throw(), plan.n_ubatch};
  run({&prompt, 1}, LogitRows::last);
  pool->close(prompt.seq);
  std::vector<SeqTokens> all;
  const int n_step = step_tokens(plan.draft.get(), plan.n_ctx);
  for (int i = 0; i < plan.n_sessions; ++i) {
    all.push_back({pool->open().or_throw(), n_step});
    pool->fill(all.back().seq, plan.n_ctx - n_step, uint64_t(i)).or_throw();
  }
  run(all, LogitRows::all);

  PlanCheck check{.resident_bytes = resident_bytes() - before};
  const WeightBytes weights = found_weights(engine.weights(), engine.config().tied_output);
  check.found = {{kMatrices, weights.matrices}, {kEmbedding, weights.embedding}, {kVectors, weights.vectors}};
  // A side's allocation is one number: its parts are those of its layout, and the pages' what is left.
  const KvMemory& memory = pool->memory();
  const auto& host = static_cast<const HostKvMemory&>(memory);
  int64_t lists = page_list_bytes(layers, n_pages), metrics = 0;
  for (const bool is_k : {true, false}) {
    int64_t coded = 0, ring = 0, sinks = 0, centres = 0, states = 0;
    for (int i = 0; i < memory.n_layers(); ++i) {
      const KvLayout& layout = memory.layout(i, is_k);
      const int64_t n = memory.n_slots(), counts = memory.n_pages(memory.page_class(i)) * int64_t(sizeof(PageCounts));
      ring += n * layout.ring_bytes();
      sinks += n * layout.sinks_bytes();
      centres += n * (layout.centre_bytes() + layout.head_scale_bytes());
      states += n * layout.state_bytes();
      coded += memory.allocated_bytes(i, is_k) - n * layout.slot_bytes() - counts;
      lists += counts;
      const KvTiles& t = host.tiles(i, is_k);
      if (t.metric) metrics += 4 * int64_t(t.n_kv_heads) * t.head_dim * t.head_dim;
    }
    check.found.push_back({side_name(is_k, "coded"), coded});
    check.found.push_back({side_name(is_k, "recent"), ring});
    check.found.push_back({side_name(is_k, "sinks"), sinks});
    check.found.push_back({side_name(is_k, "centres"), centres});
    if (is_k) check.found.push_back({"states", states});
  }
  if (const KvMetric* of_model = engine.kv_metric(layers)) metrics += 4 * (ssize(of_model->k) + ssize(of_model->v));
  const StepBuffers buffers = engine.backend().step_buffers();
  check.found.push_back({kPageLists, lists});
  check.found.push_back({kMetrics, metrics});
  check.found.push_back({kActivations, buffers.activations});
  check.found.push_back({kScratch, buffers.scratch});
  check.found.push_back({kLogits, outputs->bytes()});
  if (plan.draft && plan.draft->type != "lookup") check_draft(engine, plan, place, check);
  return check;
}

std::optional<double> stored_roof_gb_s(std::span<const Row> rows, const LoadOptions& place) {
  const std::optional<int> device = parse_device(place.device);
  const gpu::DeviceReport gpus = device ? gpu::query_devices() : gpu::DeviceReport();
  const MachineInfo machine = machine_info();
  std::optional<double> roof;
  std::string newest;
  for (const Row& row : rows) {
    if (text_in(row, "kind") != (device ? "bandwidth-device" : "bandwidth") || text_in(row, "date") < newest) continue;
    double found = NAN;
    if (device) {
      if (size_t(*device) < gpus.devices.size() && text_in(row, "device_name") == gpus.devices[size_t(*device)].name)
        found = number_in(row, "read_roof_gb_s");
    } else if (text_in(row, "cpu") == machine.cpu_model && number_in(row, "n_threads") == place.n_threads) {
      // Its best repeat, as other tenants only ever take away.
      for (const Row& stream : row.value("streams", Row::array()))
        if (text_in(stream, "name") == "read") found = number_in(stream, "max_gb_s");
    }
    if (!(found > 0)) continue;
    roof = found;
    newest = text_in(row, "date");
  }
  return roof;
}

Row to_row(const PlannedModel& model, const MemoryPlan& plan) {
  Row row{{"kind", "plan"},
          {"model_name", model.config().name},
          {"device", model.place.device},
          {"kv", kv_text(plan.kv)},
          {"n_ctx", plan.n_ctx},
          {"n_sessions", plan.n_sessions},
          {"n_ubatch", plan.n_ubatch},
          {"parts", Row::object()},
          {"total_bytes", plan.total()},
          {"session_bytes", plan.session_bytes},
          {"step_weight_bytes", plan.step_weight_bytes},
          {"step_kv_bytes", plan.step_kv_bytes}};
  if (const std::optional<int> device = parse_device(model.place.device))
    row["device_name"] = gpu::query_devices().devices.at(size_t(*device)).name;
  if (model.slice) put_ranks(row, model.slice->n_ranks(), model.slice->n_stages);
  for (const PlanPart& part : plan.parts) row["parts"][part.name] = part.bytes;
  if (plan.draft)
    row["draft"] = {{"type", plan.draft->type},
                    {"path", plan.draft->path},
                    {"depth", plan.draft->depth},
                    {"kv", kv_text(plan.draft->kv)}};
  return row;
}

}  // namespace ridge::lab
