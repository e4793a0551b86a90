// A plan held against what a model, its caches and its steps take on the CPU.
#include <unistd.h>
#include <fstream>

#include "base/rng.h"
#include "engine/device_name.h"
#include "lab/decide/plan_parts.h"

namespace ridge::lab {
namespace {

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

/// Bytes of the weights after loading: all buffers, and rows in a mapping that kernels read.
WeightBytes found_weights(const Weights& w, bool tied) {
  WeightBytes sum{.embedding = embedding_bytes(w), .vectors = vector_bytes(w)};
  for (const AlignedBuffer& buffer : w.buffers) sum.matrices += buffer.bytes();
  for (const Linear* const m : {&w.embedding, &w.layer_embedding})
    if (in_buffers(w, *m)) sum.matrices -= m->bytes();
  for_each_matrix(w, [&](const Linear& m, std::string_view) {
    const bool is_embedding = tied && &m == &w.output;
    if (!m.panels && !is_embedding && !in_buffers(w, m)) sum.matrices += m.bytes();
  });
  return sum;
}

/// Matrices and vectors of a head as it was loaded.
int64_t found_head_bytes(const MtpHead& head, const Weights& target) {
  const Weights& w = head.weights;
  int64_t bytes = vector_bytes(w);
  const Weights& owner = w.buffers.empty() && target.head ? *target.head : w;  // a shape's head stays the model's
  for (const AlignedBuffer& buffer : owner.buffers) bytes += buffer.bytes();
  const auto add = [&](const Linear& m) { bytes += !m.panels && !in_buffers(owner, m) ? m.bytes() : 0; };
  add(w.join);
  for_each_matrix(w, [&](const Linear& m, std::string_view) {
    if (&m != &w.output || head.own_output) add(m);
  });
  return bytes + (head.own_embedding ? w.embedding.bytes() : 0);
}

/// Bytes of a pool's caches with its lists.
int64_t found_kv(const SequencePool& pool, std::span<const KvLayerConfig> layers) {
  const KvMemory& memory = pool.memory();
  const PageNumbers n_pages = {memory.n_pages(PageClass::full), memory.n_pages(PageClass::sliding)};
  return memory.allocated_bytes() + page_list_bytes(layers, n_pages);
}

/// Bytes that the proposers of all sessions hold after a prompt and a step, on a backend that they share.
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
  for (const KvSide side : kKvSides)
    for (int i = 0; i < pool.memory().n_layers(); ++i)
      if (const KvTiles& t = host.tiles(i, side); t.metric)
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

PlanCheck check_plan(const std::string& path, const MemoryPlan& plan, const LoadOptions& place, Ranks* ranks) {
  if (parse_device(place.device)) return check_device_plan(path, plan, place);
  const int64_t before = resident_bytes();
  Engine engine(path, place, ranks);
  const std::vector<KvLayerConfig> layers = layer_configs(session_options(plan.kv, plan.n_ctx, 0), engine.plan());
  const PageNumbers n_pages = pool_pages(layers, plan.n_ctx, plan.n_sessions, plan.n_ubatch);
  const auto pool =
      engine.open_pool(layers, n_pages, planned_slots(plan.draft.get(), layers, plan.n_sessions), plan.n_ctx);
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
  const int n_step = step_tokens(plan.draft.get(), layers, plan.n_ctx);
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
  for (const KvSide side : kKvSides) {
    SideBytes bytes;
    for (int i = 0; i < memory.n_layers(); ++i) {
      const KvLayout& layout = memory.layout(i, side);
      const SlotNumbers slots = memory.slots();
      const int64_t counts = memory.n_pages(memory.page_class(i)) * int64_t(sizeof(PageCounts));
      bytes.add_slots(layout, slots);
      bytes.coded += memory.allocated_bytes(i, side) - slots.n * layout.slot_bytes() -
                     slots.n_histories * layout.history_bytes() - counts;
      lists += counts;
      const KvTiles& t = host.tiles(i, side);
      if (t.metric) metrics += 4 * int64_t(t.n_kv_heads) * t.head_dim * t.head_dim;
    }
    bytes.put(check.found, side);
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

}  // namespace ridge::lab
