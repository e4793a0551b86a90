#include "lab/decide/plan.h"

#include <algorithm>
#include <cmath>

#include "engine/cuda_step_buffers.h"
#include "engine/device_name.h"
#include "gpu/device_query.h"
#include "lab/decide/plan_parts.h"
#include "lab/rows/machine.h"
#include "model/expert_place.h"

namespace ridge::lab {
namespace {

constexpr int kHostUbatch = 512, kDeviceUbatch = 2048, kMostContext = 1 << 26;
/// Memory of the driver, to be fitted to the output of `--check`: the context with this program's code, and one node of
/// a recorded step.
constexpr int64_t kContextBytes = int64_t(512) << 20, kGraphNodeBytes = 1024;

/// Bytes of the matrices on the CPU once they are loaded.
WeightBytes planned_weights(const PlannedModel& model) {
  const Weights& w = model.loaded.weights;
  const bool tied = model.config().tied_output;
  WeightBytes sum{.embedding = embedding_bytes(w), .vectors = vector_bytes(w)};
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
  if (model.is_shape && w.layer_embedding.format) sum.matrices += packed_bytes(w.layer_embedding, model.isa);
  return sum;
}

/// Parts of the caches of n_sessions sequences, in the order of a plan.
void add_kv(const PlannedModel& model, std::span<const KvLayerConfig> layers, PageNumbers n_pages, SlotNumbers slots,
            MemoryPlan& plan) {
  int64_t lists = page_list_bytes(layers, n_pages), metrics = 0, of_metrics = 0;
  for (const KvSide side : kKvSides) {
    SideBytes bytes;
    for (const KvLayerConfig& config : layers) {
      const KvLayout layout(config, side, model.on_device() && device_tiles(config).ok);
      const int n = n_pages[page_class_of(layout.tiles)];
      bytes.coded += n * layout.page_bytes();
      bytes.add_slots(layout, slots);
      lists += n * int64_t(sizeof(PageCounts));
      const int64_t form = 4 * int64_t(config.n_kv_heads) * config.head_dim * config.head_dim;
      if (config.n_kv_heads > 0) of_metrics += side == KvSide::k || !config.v_is_k ? form : 0;
      if (layout.config.policy.rounding == KvRounding::weighted) metrics += layout.tiles.n_kv_heads > 0 ? form : 0;
    }
    bytes.put(plan.parts, side);
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

/// Bytes of hidden states in Outputs after a prompt's step, as its buffer grows.
int64_t hidden_bytes(int64_t n_tokens, int d_model) { return AlignedBuffer::grown(4 * n_tokens * d_model); }

/// Matrices and vectors of a head's own.
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
    if (&m != &w.output || head.own_output) add(m);
  });
  return bytes + (head.own_embedding ? w.embedding.bytes() : 0);
}
/// Bytes of the parts that add_kv() adds.
int64_t kv_bytes(const std::vector<PlanPart>& parts) {
  int64_t bytes = 0;
  for (const PlanPart& part : parts)
    if (part.name.starts_with("KV") || part.name == "states" || part.name == kPageLists) bytes += part.bytes;
  return bytes;
}

/// Adds what draft tokens take: weights, caches of all sessions, and on the CPU buffers of steps and rows of logits.
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
  const PlannedBuffers buffers = plan_step_buffers({of, w}, layers, target.isa, target.place.n_threads,
                                                   planned_steps(plan.n_ctx, 1, plan.n_ubatch, 1));
  // A head runs in the model's own scratch.
  const int64_t shared = draft.model ? buffers.scratch : hidden_bytes(1, of.d_model) * plan.n_sessions;
  plan.parts.push_back({kDraftBuffers, buffers.activations + shared + plan.n_sessions * buffers.logits});
}

}  // namespace

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
    buffers = plan_device_buffers(
        model.plan, w, layers, model.place.kernels,
        planned_steps(n_ctx, n_sessions, plan.n_ubatch, step_tokens(plan.draft.get(), layers, n_ctx), true),
        {.samples = !plan.draft, .keeps_hidden = keeps_hidden(plan.draft.get())});
    plan.parts.push_back({kMatrices, buffers.weights.bytes});
    const HostExpertBytes host = host_expert_bytes(model.plan, w, detect_isa());
    plan.host_bytes = host.memory;
    plan.step_host_bytes = host.step;
    plan.n_host_experts = host.n_experts;
    plan.n_cached_experts = host.n_cached;
    plan.step_weight_bytes -= host.step;
  } else {
    const WeightBytes weights = planned_weights(model);
    plan.parts = {{kMatrices, weights.matrices}, {kEmbedding, weights.embedding}, {kVectors, weights.vectors}};
  }
  const SlotNumbers slots = planned_slots(plan.draft.get(), layers, n_sessions);
  add_kv(model, layers, pool_pages(layers, n_ctx, n_sessions, plan.n_ubatch), slots, plan);
  const PageNumbers pages = {std::max(1, pages_for(layers, n_ctx)), most_sliding_pages(layers)};
  for (const KvLayerConfig& config : layers)
    for (const KvSide side : kKvSides) {
      const KvLayout layout(config, side, model.on_device() && device_tiles(config).ok);
      const int n = std::min(pages.full, pages[page_class_of(layout.tiles)]);
      plan.session_bytes +=
          n * layout.page_bytes() + layout.slot_bytes() + (slots.n_histories > 0 ? layout.history_bytes() : 0);
      plan.step_kv_bytes += n_sessions * layout.step_bytes(n_ctx);
    }
  const PlannedDraft* const planned_draft = plan.draft.get();
  const bool has_cache = planned_draft && planned_draft->type != "lookup";
  if (!model.on_device()) {
    const PlannedBuffers of_cpu = plan_step_buffers(
        {model.plan, w, model.slice ? &*model.slice : nullptr}, layers, model.isa, model.place.n_threads,
        planned_steps(n_ctx, n_sessions, plan.n_ubatch, step_tokens(planned_draft, layers, n_ctx)));
    plan.parts.push_back({kActivations, of_cpu.activations});
    plan.parts.push_back({kScratch, of_cpu.scratch});
    const int64_t hidden = keeps_hidden(planned_draft) ? hidden_bytes(plan.n_ubatch, model.plan.d_model) : 0;
    plan.parts.push_back({kLogits, of_cpu.logits + hidden});
  }
  gpu::Allocations driver;
  if (model.on_device()) {
    const gpu::Allocations caches =
        plan_device_cache(layers, pool_pages(layers, n_ctx, n_sessions, plan.n_ubatch), slots);
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
  if (has_cache) add_draft(model, *planned_draft, plan, driver);
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

std::optional<double> stored_bandwidth_gb_s(std::span<const Row> rows, const LoadOptions& place) {
  const std::optional<int> device = parse_device(place.device);
  const gpu::DeviceReport gpus = device ? gpu::query_devices() : gpu::DeviceReport();
  const MachineInfo machine = machine_info();
  std::optional<double> bandwidth;
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
    bandwidth = found;
    newest = text_in(row, "date");
  }
  return bandwidth;
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
  if (plan.host_bytes > 0)
    row.update({{"host_expert_bytes", plan.host_bytes}, {"step_host_bytes", plan.step_host_bytes}});
  if (plan.n_cached_experts > 0) row["cached_experts"] = plan.n_cached_experts;
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
