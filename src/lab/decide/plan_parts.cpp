#include "lab/decide/plan_parts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace ridge::lab {
namespace {

/// Bytes of a page in the pool's lists: its number among the free ones, its holders, its place in a sequence's list.
constexpr int64_t kPoolBytesOfPage = 3 * sizeof(int32_t);

bool has_states(std::span<const KvLayerConfig> layers) {
  return std::ranges::any_of(layers, [](const KvLayerConfig& layer) { return layer.state_values > 0; });
}

}  // namespace

void SideBytes::add_slots(const KvLayout& layout, SlotNumbers slots) {
  ring += slots.n * layout.ring_bytes();
  sinks += slots.n * layout.sinks_bytes();
  centres += slots.n * (layout.centre_bytes() + layout.head_scale_bytes());
  states += slots.n_states() * layout.state_bytes();
}

void SideBytes::put(std::vector<PlanPart>& parts, KvSide side) const {
  const auto name = [&](std::string_view what) { return fmt::format("KV {} {}", side == KvSide::k ? "K" : "V", what); };
  parts.insert(parts.end(),
               {{name("coded"), coded}, {name("recent"), ring}, {name("sinks"), sinks}, {name("centres"), centres}});
  if (side == KvSide::k) parts.push_back({"states", states});
}

int64_t sum_of(std::span<const PlanPart> parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t(0),
                         [](int64_t sum, const PlanPart& part) { return sum + part.bytes; });
}

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

int64_t embedding_bytes(const Weights& w) {
  return w.embedding.bytes() + (w.layer_embedding.format ? w.layer_embedding.bytes() : 0);
}

int64_t page_list_bytes(std::span<const KvLayerConfig> layers, PageNumbers n_pages) {
  const auto slides = [](const KvLayerConfig& layer) { return layer.attention_window > 0; };
  int64_t bytes = 0;
  if (!std::ranges::all_of(layers, slides)) bytes += kPoolBytesOfPage * n_pages.full;
  if (std::ranges::any_of(layers, slides))
    bytes += kPoolBytesOfPage * n_pages.sliding + int64_t(sizeof(int32_t)) * (n_pages.full - n_pages.sliding);
  return bytes;
}

int step_tokens(const PlannedDraft* draft, std::span<const KvLayerConfig> layers, int n_ctx) {
  const int wanted = draft ? draft->depth + 1 : 1;
  return std::min({n_ctx, wanted, has_states(layers) ? kStateHistory : wanted});
}

SlotNumbers planned_slots(const PlannedDraft* draft, std::span<const KvLayerConfig> layers, int n_sessions) {
  return {n_sessions, draft && has_states(layers) ? n_sessions : 0};
}

bool keeps_hidden(const PlannedDraft* draft) { return draft && draft->type == "mtp"; }

std::vector<KvLayerConfig> draft_layers(const PlannedDraft& draft, int n_ctx) {
  if (draft.model) return layer_configs(session_options(draft.kv, n_ctx, 0), draft.model->plan);
  std::vector<KvLayerConfig> layers = layer_configs(session_options(draft.kv, n_ctx, 0), draft.head_plan);
  for (KvLayerConfig& layer : layers) layer.k.policy.rounding = layer.v.policy.rounding = KvRounding::nearest;
  return layers;
}

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

}  // namespace ridge::lab
