#include "engine/cpu_step_buffers.h"

#include <algorithm>

#include "op/attn/attn.h"
#include "op/cache/append.h"
#include "op/gemv/panels.h"

namespace ridge {
namespace {

/// An AlignedBuffer as ensure() makes it grow.
struct Grown {
  int64_t bytes = 0;
  void ensure(int64_t needed) {
    if (needed > bytes) bytes = needed + needed / 2;
  }
};

/// Sizes that kernels of op/gemv and op/attn take, by the lanes of the instruction set.
constexpr int kBlockStride = 1024 + 16, kAttendedRows = 8, kSplit = 512, kScoreStride = kSplit + 16;
constexpr int kRoomRows = 32, kSplitsAtOnce = 64, kCodedBytes = 16;
constexpr int64_t kIntQueryBytes = 2 * 640, kIntThreadBytes = 19520, kIntSumsBytes = 1536;

class Steps {
 public:
  Steps(const ModelPlan& plan, const Weights& weights, std::span<const KvLayerConfig> layers, Isa isa, int n_threads,
        const ModelSlice* slice)
      : plan_(plan), weights_(weights), layers_(layers), isa_(isa), n_threads_(n_threads), slice_(slice) {}

  void run(const StepShape& step) {
    const int64_t n = int64_t(step.n_seqs) * step.n_tokens;
    for (const int64_t width :
         {int64_t(plan_.d_model), int64_t(plan_.d_model), int64_t(plan_.q_dim()), int64_t(plan_.q_dim()),
          int64_t(plan_.kv_dim()), int64_t(plan_.kv_dim()), int64_t(plan_.d_ff()), int64_t(plan_.d_ff())})
      floats(n * width);
    if (weights_.join.format) {  // an MTP head: embeddings beside hidden states, and these normed
      rows_[kJoin].ensure(4 * n * 2 * plan_.d_model);
      rows_[kJoin + 1].ensure(4 * n * plan_.d_model);
      linear(weights_.join, n);
    }
    for (size_t i = 0; i < plan_.layers.size(); ++i) {
      next_ = kRows;
      if (weights_.layers[i].o.format) layer(i, n, step);  // else other ranks have it
    }
    next_ = 0;
    linear(weights_.output, step.n_logits);
    if (slice_) columns_.ensure(4 * int64_t(step.n_logits) * weights_.output.n_out);
    logits_.ensure(4 * int64_t(step.n_logits) * plan_.vocab_size);
  }
  /// Making the forms of weighted rounding (model/kv_metric.cpp).
  void metric() {
    for (size_t i = 0; i < plan_.layers.size(); ++i) {
      const LayerWeights& w = weights_.layers[i];
      const AttentionPlan& a = plan_.layers[i].attention;
      const LatentPlan& l = plan_.layers[i].latent;
      const int64_t n = samples(plan_.d_model);
      if (!w.o.format) continue;
      if (plan_.layers[i].mixer == MixerKind::attention) {
        columns(w.q);
        columns(w.o);
        floats_by(a.head_dim, n, a.head_dim);
      } else if (plan_.layers[i].mixer == MixerKind::latent) {
        const Linear& q = l.q_rank > 0 ? w.q_b : w.q;
        linear(q, samples(q.n_in));
        for (const Linear& m : w.k_b) linear(m, samples(q.n_in));
        floats_by(a.head_dim, samples(q.n_in), a.head_dim);
        columns(w.o);
        for (const Linear& m : w.v_b) columns(m);
        floats_by(l.rank, l.value_dim, n);
        floats_by(a.head_dim, n, a.head_dim);
      }
    }
  }
  PlannedBuffers sum() const {
    PlannedBuffers all;
    for (const Grown& buffer : rows_) all.activations += buffer.bytes;
    all.activations += whole_.bytes + columns_.bytes;
    for (const Grown& buffer : scratch_) all.scratch += buffer.bytes;
    all.logits = logits_.bytes;
    return all;
  }

 private:
  static constexpr size_t kRows = 8, kMixer = kRows + 8, kJoin = kMixer + 4, kBuffers = kJoin + 2;

  /// The next buffer of the step's rows, in the order they are asked for; layers share those behind the first eight.
  void floats(int64_t n) { rows_[next_++].ensure(4 * n); }

  void layer(size_t i, int64_t n, const StepShape& step) {
    const LayerPlan& layer = plan_.layers[i];
    const LayerWeights& w = weights_.layers[i];
    const AttentionPlan& a = layer.attention;
    switch (layer.mixer) {
      case MixerKind::attention:
        if (a.gate) rows_[kRows].ensure(8 * n * a.q_dim());
        for (const Linear* m : {&w.q, &w.k, &w.v}) linear(*m, n);
        if (slice_ && a.qk_norm_whole)
          for (const auto* of_all : {&slice_->q, &slice_->kv}) whole_.ensure(4 * n * of_all->back());
        attend(layers_[i], a.n_heads, step);
        break;
      case MixerKind::latent: {
        const LatentPlan& l = layer.latent;
        rows_[kRows].ensure(4 * n * a.n_heads * l.query_dim());
        for (const Linear* m : {&w.q_a, &w.q_b, &w.q, &w.kv_a})
          if (m->format) linear(*m, n);
        if (l.q_rank > 0) rows_[kRows + 1].ensure(4 * n * l.q_rank);
        for (const Linear& m : w.k_b) linear(m, n);
        attend(layers_[i], a.n_heads, step);
        rows_[kRows + 1].ensure(4 * n * a.n_heads * l.value_dim);
        for (const Linear& m : w.v_b) linear(m, n);
        break;
      }
      case MixerKind::delta: {
        const DeltaPlan& d = layer.delta;
        next_ = kRows + 2;
        for (const int64_t width :
             {d.channels(), d.values(), int64_t(d.n_value_heads), int64_t(d.n_value_heads), d.values()})
          floats(n * width);
        for (const Linear* m : {&w.delta.qkv, &w.delta.z, &w.delta.a, &w.delta.b}) linear(*m, n);
        break;
      }
    }
    project(w.o, slice_ ? &slice_->q : nullptr, n);
    if (layer.feed_forward == FeedForwardKind::experts) {
      const ExpertsPlan& e = layer.experts;
      next_ = kMixer;
      floats(n * e.n_experts);
      for (int buffer = 0; buffer < 3; ++buffer) floats(n * plan_.d_model);
      linear(w.router, n);
      const int64_t share = std::min(n, (2 * n * e.rule.n_used + e.n_experts - 1) / e.n_experts);
      for (const Linear* m : {&w.experts[0].gate, &w.experts[0].up, &w.experts[0].down}) linear(*m, share);
    }
    if (!w.gate.format) return;
    for (const Linear* m : {&w.gate, &w.up}) linear(*m, n);
    project(w.down, slice_ ? &slice_->ff : nullptr, n);
  }
  /// A product of rows that ranks put together and whose columns they exchange, where they are cut so.
  void project(const Linear& w, const std::vector<int64_t>* borders, int64_t n) {
    if (slice_ && slice_->gathers) {
      whole_.ensure(4 * n * borders->back());
      columns_.ensure(4 * n * w.n_out);
    }
    linear(w, n);
  }

  static int64_t samples(int64_t n) {
    const int64_t step = std::max<int64_t>(1, n / 1024);
    return (n + step - 1) / step;
  }
  /// A matrix of floats times n rows.
  void floats_by(int64_t n_out, int64_t n_in, int64_t n) {
    linear({.format = find_weight_format("f32").or_throw(), .n_out = n_out, .n_in = n_in}, n);
  }
  /// A matrix of which only panels will be there: its columns are products.
  void columns(const Linear& w) {
    if (!w.rows && !w.int8_activations && packed_bytes(w, isa_) > 0) linear(w, std::min<int64_t>(256, w.n_in));
  }

  void linear(const Linear& w, int64_t n) {
    if (n == 0) return;
    const bool vectors = isa_ >= Isa::avx2;
    if (w.int8_activations) {
      scratch_[0].ensure(n * w.n_in);
      scratch_[1].ensure(4 * n);
      scratch_[2].ensure(vectors ? 4 * n : 4 * n_threads_ * w.n_in);
    } else if (packed_bytes(w, isa_) > 0) {
      const QuantizedBytes bytes = quantized_bytes(2, n, w.n_in);
      scratch_[0].ensure(bytes.q);
      scratch_[1].ensure(bytes.scale);
      scratch_[2].ensure(bytes.sum);
    } else if (!vectors) {
      scratch_[0].ensure(4 * n_threads_ * w.n_in);
    } else {
      rows(w, n);
    }
  }
  /// Kernels that read rows: up to 2 lanes() tokens by few rows at a time, more by strips of rows.
  void rows(const Linear& w, int64_t n) {
    const int64_t lanes = this->lanes(), whole = (w.n_in + lanes - 1) / lanes * lanes;
    const bool few = n <= 2 * lanes;
    if (whole != w.n_in) scratch_[few ? 1 : 2].ensure(4 * n * whole);
    if (few) return scratch_[0].ensure(4 * n_threads_ * (n == 1 ? 8 : lanes / 4) * kBlockStride);
    const int64_t strip_rows = 3 * lanes, chain = 1024 / lanes * strip_rows + 16;
    scratch_[0].ensure(4 * n_threads_ * lanes * (chain + kBlockStride));
    scratch_[1].ensure(4 * n * ((w.n_in + 1023) / 1024 * 1024));
    scratch_[2].ensure(4 * n_threads_ * n * strip_rows);
  }

  void attend(const KvLayerConfig& config, int n_heads, const StepShape& step) {
    const KvTiles k = KvLayout(config, true, false).tiles, v = KvLayout(config, config.v_is_k, false).tiles;
    const int most = std::min(step.n_tokens, most_rows_at_once(k, v));
    const int64_t n = int64_t(step.n_seqs) * most;
    scratch_[0].ensure(2 * n * kCodedBytes);
    if (isa_ < Isa::avx2) return;
    const AttentionProblem problem(config, n_heads, step.n_past + step.n_tokens, most);
    bool integers = false;
    for (const AttentionVariant& variant : attention_variants())
      if (variant.isa <= isa_ && variant.supports(problem.get()).ok) integers = variant.rounds;
    const int64_t lanes = this->lanes(), stride = (k.head_dim + lanes - 1) / lanes * lanes;
    const int64_t most_pairs = int64_t(kAttendedRows) * (n_heads / k.n_kv_heads);
    scratch_[0].ensure(n * n_heads * (4 * stride + (integers ? kIntQueryBytes : 0)));
    const int64_t room = (kRoomRows * stride + most_pairs * (kScoreStride + 2 * stride + 4) + 15) / 16 * 16;
    scratch_[1].ensure(n_threads_ * (4 * room + (integers ? kIntThreadBytes + most_pairs * kIntSumsBytes : 0)));
    const int64_t n_items = int64_t(step.n_seqs) * ((most + kAttendedRows - 1) / kAttendedRows) * k.n_kv_heads;
    if (n_items >= 2 * n_threads_ || step.n_past + step.n_tokens <= kSplit) return;
    scratch_[2].ensure(4 * n_items * (1 + kSplitsAtOnce) * most_pairs * ((stride + 2 + 15) / 16 * 16));
  }
  int64_t lanes() const { return isa_ == Isa::avx512 ? 16 : 8; }

  const ModelPlan& plan_;
  const Weights& weights_;
  const std::span<const KvLayerConfig> layers_;
  const Isa isa_;
  const int64_t n_threads_;
  const ModelSlice* const slice_;  // null: the whole model
  size_t next_ = 0;
  Grown rows_[kBuffers], scratch_[3], logits_, whole_, columns_;
};

}  // namespace

PlannedBuffers plan_step_buffers(const ModelPlan& plan, const Weights& weights, std::span<const KvLayerConfig> layers,
                                 Isa isa, int n_threads, std::span<const StepShape> steps, const ModelSlice* slice) {
  Steps all(plan, weights, layers, isa, n_threads, slice);
  const auto weighted = [](const KvLayerConfig& layer) {
    return layer.k.policy.rounding == KvRounding::weighted || layer.v.policy.rounding == KvRounding::weighted;
  };
  if (std::ranges::any_of(layers, weighted)) all.metric();
  for (const StepShape& step : steps) all.run(step);
  return all.sum();
}

}  // namespace ridge
