#include "engine/cuda_step_buffers.h"

#include "engine/cuda_model.h"
#include "op/attn/device_attention.h"
#include "op/cache/rotation.h"

namespace ridge {

using B = StepBuffer;
namespace {

/// Launches of a layer's mixer and feed-forward, of any kind, at most; and of a step beside its layers.
constexpr int64_t kMostLayerLaunches = 16, kMostOtherLaunches = 16;

class Steps {
 public:
  Steps(const ModelPlan& plan, const CudaModel& model, std::span<const KvLayerConfig> layers, int least_rows)
      : plan_(plan), model_(model), sides_(layers), least_rows_(least_rows) {}

  void run(const StepShape& shape, bool keeps_hidden) {
    const StepPlan step = plan_shape(shape, sides_, plan_, least_rows_);
    reserve_step_buffers(buffers_, step, plan_, model_, sides_);
    const int64_t n = step.n_rows();
    for (const LayerPlan& layer : plan_.layers)
      if (layer.mixer == MixerKind::latent) {
        const int64_t most = n == 1 ? 1 : ExpertPack::kMost;
        buffers_[B::head_packs].ensure<ExpertPack>(layer.attention.n_heads * ((n + most - 1) / most));
      }
    rows_.ensure(step.n_logits() * plan_.vocab_size);
    plan_matmuls(plan_, model_, n, step.n_logits(), scratch_);
    if (keeps_hidden) hidden_.ensure(step.n_tokens * plan_.d_model);
    if (step.recorded)
      all.n_graph_nodes = std::max(all.n_graph_nodes, kMostOtherLaunches + kMostLayerLaunches * ssize(plan_.layers));
  }
  /// Lists that the padding of recorded steps makes longer than tokens are in the buffers already.
  void sample(int n) {
    all.sampling.add(DeviceSampler::bytes_of(n, plan_.vocab_size));
    all.sampling.add(4 * int64_t(n));                                         // counters of the token ring
    all.sampling.add(4 * int64_t(std::max(n, padded_rows(n, least_rows_))));  // tokens
  }
  DeviceBuffers sum() {
    for (const gpu::PlannedBuffer& buffer : buffers_) all.activations.add(buffer.size);
    scratch_.add_to(all.scratch);
    all.logits.add(rows_.size);
    all.logits.add(hidden_.size);
    return all;
  }

  DeviceBuffers all;

 private:
  const ModelPlan& plan_;
  const CudaModel& model_;
  const PlannedSides sides_;
  const int least_rows_;
  StepWorkspace<gpu::PlannedBuffer> buffers_;
  PlannedScratch scratch_;
  gpu::PlannedBuffer rows_, hidden_;
};

/// Call with the fields that plan_scratch() reads.
MatmulCall call(int64_t n, bool normed, MatmulOutput output = MatmulOutput::store) {
  static constexpr float kNorm = 1;  // that there is one
  return {.n_tokens = n, .norm_weight = normed ? &kNorm : nullptr, .output = output};
}

}  // namespace

void plan_matmuls(const ModelPlan& plan, const CudaModel& model, int64_t n, int64_t n_logits, PlannedScratch& scratch) {
  if (model.join_hidden.bytes() > 0) {
    model.join_embedding.plan_scratch(call(n, true), scratch);
    model.join_hidden.plan_scratch(call(n, true, MatmulOutput::add), scratch);
  }
  if (model.layer_inputs.bytes() > 0) model.layer_inputs.plan_scratch(call(n, false), scratch);
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlan& layer = plan.layers[i];
    const CudaLayer& of = model.layers[i];
    const bool normed = layer.norms != NormPlace::after && !plan.layer_norm;
    const auto out = adds_at_once(layer) ? MatmulOutput::add : MatmulOutput::store;
    // Matmuls of layers that ranks of another stage have are empty.
    const auto add = [&](const DeviceMatmul& product, const MatmulCall& of_call) {
      if (product.bytes() > 0) product.plan_scratch(of_call, scratch);
    };
    add(of.delta_in, call(n, normed));
    add(of.qkv, call(n, normed));
    add(of.q_b, call(n, true));
    add(of.o, call(n, layer.attention.out_norm, out));
    add(of.input_gate, call(n, false));
    add(of.input_proj, call(n, false));
    const ExpertsPlan& e = layer.experts;
    const bool has_experts = layer.feed_forward == FeedForwardKind::experts;
    const bool few = has_experts && takes_few_experts(of.experts, e, n);
    // A shared expert that joins the others of few tokens has no matmuls of its own then.
    if (!(of.joins_shared && few)) {
      add(of.gate_up, call(n, normed && (!has_experts || layer.experts.beside_dense)));
      add(of.down, call(n, layer.dense.down_norm, has_experts ? MatmulOutput::store : out));
    }
    const ExpertMatmuls& experts = streams_experts(of, e, n) ? model.slots[size_t(of.slot)] : of.experts;
    if (!has_experts || few || experts.down.bytes() == 0 || !experts.can_group()) continue;
    const ExpertChoice choice{.n_tokens = n, .n_experts = e.n_experts, .n_used = e.rule.n_used};
    const ExpertGroups groups{.width = group_columns(), .n_slots = choice.n_slots(), .most_areas = choice.n_areas()};
    for (const DeviceExpertMatmul* product : {&experts.gate_up, &experts.down})
      scratch.bricks.ensure<std::byte>(product->group_scratch_bytes(groups));
  }
  if (n_logits > 0 && model.output.bytes() > 0) model.output.plan_scratch(call(n_logits, !plan.layer_norm), scratch);
}

DeviceBuffers plan_device_buffers(const ModelPlan& plan, const Weights& weights, std::span<const KvLayerConfig> layers,
                                  std::span<const std::string> kernels, std::span<const StepShape> steps,
                                  const DeviceWishes& wishes) {
  const int64_t upload = cuda_weight_bytes(plan, weights, kernels);  // refuses what a device does not run
  const DeviceOptions options = parse_device_kernels(kernels);
  gpu::Allocations held;
  const CudaModel model = CudaModel::planned(plan, weights, options.kernels, held);
  Steps all(plan, model, layers, options.least_rows);
  for (const StepShape& step : steps) all.run(step, wishes.keeps_hidden);
  if (wishes.samples) all.sample(std::min(steps.back().n_seqs, kMostStepTokens));
  DeviceBuffers sum = all.sum();
  sum.weights = held;
  sum.packing = upload - held.bytes;
  return sum;
}

gpu::Allocations plan_device_cache(std::span<const KvLayerConfig> layers, PageNumbers n_pages, SlotNumbers slots) {
  constexpr int64_t kPad = 64, kPart = sizeof(CachePart);
  gpu::Allocations all;
  int64_t n_sides[kPageClasses] = {}, n_coded_sides[kPageClasses] = {}, slot_parts = 0, float_parts = 0, states = 0;
  for (size_t i = 0; i < layers.size(); ++i)
    for (const KvSide side : kKvSides) {
      const KvLayout l(layers[i], side, device_tiles(layers[i]).ok);
      const PageClass pages = page_class_of(l.tiles);
      const int64_t n = n_pages[pages], n_coded = n * l.page_bytes();
      all.add(n_coded + kPad);
      if (l.ring_bytes() > 0) all.add(slots.n * l.ring_bytes() + kPad);
      if (l.sinks_bytes() > 0) all.add(slots.n * l.sinks_bytes() + kPad);
      for (const int64_t bytes : {l.centre_bytes(), l.head_scale_bytes()}) all.add(slots.n * bytes);
      all.add(slots.n_states() * l.state_bytes());
      all.add(n * int64_t(sizeof(PageCounts)));
      const int layer = layers[i].layer >= 0 ? layers[i].layer : int(i);
      all.add(4 * ssize(RowRotation(l.config.policy.rotation, layer, l.tiles.head_dim).table()));
      if (l.config.policy.rounding == KvRounding::weighted)
        all.add(4 * int64_t(l.tiles.n_kv_heads) * l.tiles.head_dim * l.tiles.head_dim);
      if (l.tiles.n_kv_heads > 0) all.add(int64_t(sizeof(KvTiles)));  // in a list of a group
      n_sides[size_t(pages)] += 1;
      n_coded_sides[size_t(pages)] += l.page_bytes() > 0;
      for (const int64_t bytes : {l.ring_bytes(), l.sinks_bytes(), l.centre_bytes(), l.head_scale_bytes()})
        slot_parts += bytes > 0;
      for (const int64_t bytes : {l.centre_bytes(), l.head_scale_bytes()}) float_parts += bytes > 0;
      states += l.state_bytes() > 0;
    }
  std::vector<KvLayouts> layouts;
  for (const KvLayerConfig& layer : layers) layouts.emplace_back(layer, false);
  for (const auto& [frequency, n_tiles] : turn_tiles(layouts, n_pages.full))
    all.add(4 * turn_table_size(int(frequency.size()), n_tiles));
  for (size_t i = 0; i < kPageClasses; ++i) {
    if (n_sides[i] == 0) continue;
    all.add(4 * int64_t(slots.n) * n_pages.full);
    all.add((n_coded_sides[i] + n_sides[i]) * kPart);  // pages and their counts
    all.add(n_sides[i] * kPart);
  }
  all.add(slot_parts * kPart);
  all.add(float_parts * kPart);
  all.add(states * kPart);
  all.add(16 * ssize(layers));
  return all;
}

}  // namespace ridge
