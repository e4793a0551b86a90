#include "engine/cpu_workspace.h"

#include <algorithm>

#include "engine/cpu_experts.h"
#include "model/tensors.h"
#include "op/attn/chosen_keys.h"
#include "op/cache/append.h"

namespace ridge {
namespace {

using B = CpuBuffer;

/// Whether this rank has the layer.
bool is_here(const LayerWeights& w) { return w.o.format || w.up.format || !w.experts.empty(); }

/// Makes `floats` large enough for a layer that is here.
void add_layer(const CpuStepModel& model, const LayerPlan& layer, const LayerWeights& w, int64_t n,
               CpuWorkspace<int64_t>& floats) {
  const auto need = [&](CpuBuffer of, int64_t n_cols) { floats[of] = std::max(floats[of], n * n_cols); };
  const AttentionPlan& a = layer.attention;
  const int64_t d_model = model.plan.d_model;
  if (layer.mixer == MixerKind::attention) {
    if (a.gate) need(B::q_gate, 2 * a.q_dim());
    if (model.slice && a.qk_norm_whole) need(B::whole, std::max(model.slice->q.back(), model.slice->kv.back()));
  }
  if (layer.mixer == MixerKind::latent) {
    const LatentPlan& l = layer.latent;
    need(B::latent_q, int64_t(a.n_heads) * l.query_dim());
    need(B::latent_v, std::max<int64_t>(l.q_rank, int64_t(a.n_heads) * l.value_dim));
    if (l.index.top_k > 0) {
      need(B::index_q, int64_t(l.index.n_heads) * l.index.dim);
      need(B::index_weights, l.index.n_heads);
      need(B::v, l.index.dim);
      floats[B::chosen] = std::max(floats[B::chosen], chosen_rows_floats(l.index.top_k, a.head_dim));
    }
  }
  if (layer.mixer == MixerKind::delta) {
    const DeltaPlan& d = layer.delta;
    need(B::delta_qkv, d.channels());
    for (const CpuBuffer of : {B::delta_z, B::delta_out}) need(of, d.values());
    for (const CpuBuffer of : {B::delta_a, B::delta_b}) need(of, d.n_value_heads);
  }
  if (layer.mixer == MixerKind::mamba) {
    need(B::delta_qkv, layer.mamba.columns());
    for (const CpuBuffer of : {B::delta_z, B::delta_out}) need(of, layer.mamba.inner());
  }
  if (layer.mixer == MixerKind::conv) {
    need(B::delta_qkv, 3 * d_model);
    need(B::delta_out, d_model);
  }
  if (layer.norms == NormPlace::parallel) need(B::normed, d_model);
  if (layer.d_input > 0) {
    need(B::layer_inputs, int64_t(model.plan.layers.size()) * layer.d_input);
    need(B::layer_gate, layer.d_input);
  }
  if (layer.attention.kv_layer >= 0) need(B::passed, d_model);
  if (layer.feed_forward == FeedForwardKind::experts) {
    need(B::scores, layer.experts.n_experts);
    if (layer.experts.beside_dense) need(B::normed, d_model);
    need(B::expert_sum, d_model);
    floats[B::expert_work] = std::max(floats[B::expert_work], expert_floats(layer.experts, d_model, n));
  }
  if (!model.slice || !model.slice->gathers) return;
  need(B::whole, model.slice->q.back());
  need(B::columns, w.o.n_out);
  if (!w.gate.format) return;
  need(B::whole, model.slice->ff.back());
  need(B::columns, w.down.n_out);
}

/// A growing AlignedBuffer without its memory.
void grow(int64_t& bytes, int64_t needed) {
  if (needed > bytes) bytes = AlignedBuffer::grown(needed);
}

/// Scratch of the kernels of a model's steps.
class StepScratch {
 public:
  StepScratch(Isa isa, int n_threads) : isa_(isa), n_threads_(n_threads) {}

  void product(const Linear& matrix, int64_t n) {
    if (n == 0 || !matrix.format) return;
    static constexpr std::byte kThere{};  // what loading leaves of the matrix
    Linear m = matrix;
    m.rows = &kThere;
    m.panels = packed_bytes(m, isa_) > 0 ? &kThere : nullptr;
    const LinearVariant& kernel = select_variant(isa_, {}, "linear", n == 1 ? gemv_variants() : gemm_variants(), m);
    if (kernel.scratch_bytes) add(kernel.scratch_bytes(m, n, n_threads_));
  }
  void attention(const Attention& a, int64_t n_seqs) {
    const AttentionVariant& kernel = select_variant(isa_, {}, "attention", attention_variants(), a);
    if (kernel.scratch_bytes) add(kernel.scratch_bytes(a, n_seqs, n_threads_));
  }
  int64_t sum() const { return bytes_[0] + bytes_[1] + bytes_[2]; }

 private:
  void add(const ScratchBytes& needed) {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = std::max(bytes_[i], needed[i]);
  }

  const Isa isa_;
  const int n_threads_;
  ScratchBytes bytes_{};
};

/// Matmuls of a layer; one expert stands for all.
void add_products(const LayerPlan& layer, const LayerWeights& w, int64_t n, StepScratch& scratch) {
  const auto add = [&](const TensorRow&, const Linear& m) { scratch.product(m, n); };
  for (const TensorRow& row : layer_tensors()) {
    call_member(row, w, add);
    call_member(row, w.delta, add);
  }
  if (w.experts.empty()) return;
  const ExpertsPlan& e = layer.experts;
  const int64_t rows = expert_rows(e, n);
  for (const Linear* m : {&w.experts[0].gate, &w.experts[0].up}) scratch.product(*m, n == 1 ? 1 : rows);
  scratch.product(w.experts[0].down, rows);
}

void add_step(const CpuStepModel& model, std::span<const KvLayerConfig> layers, const StepShape& step,
              StepScratch& scratch) {
  const int64_t n = int64_t(step.n_seqs) * step.n_tokens;
  int most_rows = step.n_tokens;
  for (const KvLayerConfig& layer : layers) {
    const KvLayouts sides(layer, false);
    most_rows = std::min(most_rows, most_rows_at_once(sides.k.tiles, sides.v.tiles));
  }
  for (size_t i = 0; i < model.plan.layers.size(); ++i) {
    const LayerPlan& layer = model.plan.layers[i];
    const LayerWeights& w = model.weights.layers[i];
    if (!is_here(w)) continue;
    add_products(layer, w, n, scratch);
    if (!layer.attends()) continue;
    const int n_keys = step.n_past + step.n_tokens;
    const auto of = size_t(layer.attention.kept_by(int(i)));
    const int n_heads = layer.attention.n_heads, top_k = layer.latent.index.top_k;
    if (top_k == 0 || n_keys <= top_k) {
      scratch.attention(AttentionProblem(layers[of], n_heads, n_keys, most_rows).get(), step.n_seqs);
      continue;
    }
    if (step.n_past < top_k) {  // queries that attend to everything
      const int n_rows = std::min(most_rows, top_k - step.n_past);
      scratch.attention(AttentionProblem(layers[of], n_heads, top_k, n_rows).get(), step.n_seqs);
    }
    scratch.attention(AttentionProblem(chosen_rows_config(layer.attention.head_dim), n_heads, top_k).get(), 1);
  }
  scratch.product(model.weights.join, n);
  scratch.product(model.weights.output, step.n_logits);
}

}  // namespace

CpuWorkspace<int64_t> cpu_workspace_floats(const CpuStepModel& model, int64_t n, int64_t n_logits) {
  const ModelPlan& plan = model.plan;
  CpuWorkspace<int64_t> floats{};
  for (const CpuBuffer of : {B::x, B::h}) floats[of] = n * plan.d_model;
  for (const CpuBuffer of : {B::q, B::attn}) floats[of] = n * plan.q_dim();
  for (const CpuBuffer of : {B::k, B::v}) floats[of] = n * plan.kv_dim();
  for (const CpuBuffer of : {B::gate, B::up}) floats[of] = n * plan.d_ff();
  if (model.weights.join.format) {
    floats[B::joined] = 2 * n * plan.d_model;
    floats[B::normed] = n * plan.d_model;
  }
  if (model.slice) floats[B::columns] = n_logits * model.weights.output.n_out;
  for (size_t i = 0; i < plan.layers.size(); ++i)
    if (const LayerWeights& w = model.weights.layers[i]; is_here(w)) add_layer(model, plan.layers[i], w, n, floats);
  return floats;
}

PlannedBuffers plan_step_buffers(const CpuStepModel& model, std::span<const KvLayerConfig> layers, Isa isa,
                                 int n_threads, std::span<const StepShape> steps) {
  CpuWorkspace<int64_t> workspace{};
  StepScratch scratch(isa, n_threads);
  PlannedBuffers all;
  for (const StepShape& step : steps) {
    const CpuWorkspace<int64_t> floats =
        cpu_workspace_floats(model, int64_t(step.n_seqs) * step.n_tokens, step.n_logits);
    for (size_t i = 0; i < workspace.size(); ++i) grow(workspace.at(i), 4 * floats.at(i));
    grow(all.logits, 4 * int64_t(step.n_logits) * model.plan.vocab_size);
    add_step(model, layers, step, scratch);
  }
  for (const int64_t bytes : workspace) all.activations += bytes;
  all.scratch = scratch.sum();
  return all;
}

}  // namespace ridge
