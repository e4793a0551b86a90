// A plan held against what a model, its caches and its steps take on a device.
#include <algorithm>
#include <array>

#include "engine/cuda_step_buffers.h"
#include "engine/device_name.h"
#include "lab/decide/plan_parts.h"

namespace ridge::lab {
namespace {

using gpu::MemoryOf;

/// Steps of a plan on a backend of a device, over one pool.
struct DeviceSteps {
  Backend& backend;
  SequencePool& pool;
  Outputs& outputs;
  int n_seqs = 1, n_step = 1;  ///< sequences of a decode step, and tokens of each of them
  int joined_width = 0;        ///< of the hidden states that an MTP head reads; 0: the steps of a model
  bool samples = false;        ///< steps sample their own tokens
};
void run_device_steps(const MemoryPlan& plan, const DeviceSteps& steps) {
  SequencePool& pool = steps.pool;
  const bool is_head = steps.joined_width > 0, hidden = keeps_hidden(plan.draft.get());
  const auto run = [&](std::span<const SeqTokens> seqs, LogitRows rows, bool keeps) {
    int64_t n = 0;
    for (const SeqTokens& s : seqs) {
      pool.reserve(s.seq, s.n_tokens).or_throw();
      n += s.n_tokens;
    }
    const std::vector<int32_t> tokens(size_t(n), 1);
    const std::vector<float> joined(size_t(n * steps.joined_width), 1.0f);
    steps.backend.run({.tokens = tokens,
                       .seqs = seqs,
                       .logits = rows,
                       .hidden = keeps,
                       .joined = {joined.data(), is_head ? n : 0, steps.joined_width}},
                      pool, steps.outputs);
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
  const int n_left = steps.samples ? 4 : 3 * steps.n_step;
  for (int i = 0; i < steps.n_seqs; ++i) {
    all.push_back({pool.open().or_throw(), steps.n_step});
    seqs.push_back(all.back().seq);
    pool.fill(seqs.back(), std::max(1, plan.n_ctx - n_left), uint64_t(i)).or_throw();
  }
  if (!steps.samples) {
    for (int i = 0; i < 3 && pool.length(seqs[0]) + steps.n_step <= plan.n_ctx; ++i)
      run(all, steps.n_step > 1 ? LogitRows::all : LogitRows::last, hidden);
    return;
  }
  run(all, LogitRows::last, false);
  const std::vector<SamplerOptions> samplers(seqs.size());
  const std::vector<std::vector<int32_t>> recent(seqs.size());
  const auto sampling = steps.backend.start_sampling(seqs, pool, steps.outputs, samplers, recent);
  for (int step = 0; step < 4 && pool.length(seqs[0]) < plan.n_ctx; ++step) sampling->launch(step);
  sampling->finish();
}

/// Bytes of components now less those before.
int64_t grown(const std::array<gpu::Allocations, gpu::kMemoryUses>& before, MemoryOf what) {
  return gpu::memory_use()[size_t(what)].bytes - before[size_t(what)].bytes;
}
/// Weights, caches and buffers of proposers, of all sessions.
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
    held.engine.emplace(draft.path, draft.model->place);
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
    run_device_steps(plan, {.backend = *backend,
                            .pool = *pool,
                            .outputs = *held.outputs.back(),
                            .joined_width = draft.model ? 0 : target.plan().d_model});
    held.pools.push_back(std::move(pool));
  }
  check.found.push_back({kDraftWeights, grown(before, MemoryOf::weights)});
  check.found.push_back({kDraftCache, grown(before, MemoryOf::cache)});
  check.found.push_back({kDraftBuffers, grown(before, MemoryOf::activations) + grown(before, MemoryOf::scratch) +
                                            grown(before, MemoryOf::logits)});
}

}  // namespace

PlanCheck check_device_plan(const std::string& path, const MemoryPlan& plan, const LoadOptions& place) {
  const auto before = gpu::memory_use();
  const gpu::DriverMemory empty = gpu::driver_memory();
  Engine engine(path, place);
  const std::vector<KvLayerConfig> layers = layer_configs(session_options(plan.kv, plan.n_ctx, 0), engine.plan());
  const auto pool = engine.open_pool(layers, pool_pages(layers, plan.n_ctx, plan.n_sessions, plan.n_ubatch),
                                     planned_slots(plan.draft.get(), layers, plan.n_sessions), plan.n_ctx);
  const std::unique_ptr<Outputs> outputs = engine.backend().make_outputs();
  const int n_step = step_tokens(plan.draft.get(), layers, plan.n_ctx);
  run_device_steps(plan, {.backend = engine.backend(),
                          .pool = *pool,
                          .outputs = *outputs,
                          .n_seqs = std::min(plan.n_sessions, kMostStepTokens / n_step),
                          .n_step = n_step,
                          .samples = !plan.draft});
  PlanCheck check;
  check.found.push_back({kMatrices, grown(before, MemoryOf::weights)});
  const KvMemory& memory = pool->memory();
  int64_t sides = 0;
  for (const KvSide side : kKvSides) {
    SideBytes bytes;
    for (int i = 0; i < memory.n_layers(); ++i) {
      bytes.add_slots(memory.layout(i, side), memory.slots());
      bytes.coded += memory.n_pages(memory.page_class(i)) * memory.layout(i, side).page_bytes();
    }
    sides += bytes.total();
    bytes.put(check.found, side);
  }
  check.found.push_back({kPageLists, grown(before, MemoryOf::cache) - sides});
  check.found.push_back({kMetrics, 0});
  check.found.push_back({kActivations, grown(before, MemoryOf::activations)});
  check.found.push_back({kScratch, grown(before, MemoryOf::scratch)});
  check.found.push_back({kLogits, grown(before, MemoryOf::logits)});
  check.found.push_back({kSampling, grown(before, MemoryOf::sampling)});
  DeviceDraftHeld held;
  if (plan.draft && plan.draft->type != "lookup") check_device_draft(engine, plan, place, held, check);
  const gpu::Allocations all = gpu::sum_of(gpu::memory_use()), old = gpu::sum_of(before);
  const gpu::DriverMemory full = gpu::driver_memory();
  const int64_t rounding = all.driver_bytes() - all.bytes - (old.driver_bytes() - old.bytes);
  check.found.push_back({kPacking, plan.of(kPacking)});
  check.found.push_back({kRounding, rounding});
  // Count driver memory beyond allocations since the context was there: recorded steps, code that is loaded late.
  check.driver_bytes = full.used();
  check.found.push_back({kGraphs, full.used() - empty.used() - (all.bytes - old.bytes) - rounding});
  check.found.push_back({kContext, empty.used()});
  return check;
}

}  // namespace ridge::lab
