#include "engine/cpu_backend.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <utility>

#include "engine/cpu_experts.h"
#include "op/attn/attn.h"
#include "op/cache/append.h"
#include "op/delta/delta.h"
#include "op/score/score.h"
#include "op/trace.h"

namespace ridge {

using B = CpuBuffer;
namespace {

class CpuOutputs final : public Outputs {
 public:
  explicit CpuOutputs(CpuContext& context) : context_(context) {}
  int64_t n_rows() const override { return rows_.rows; }
  View2<const float> logits() override { return rows_; }
  View2<const float> hidden() override { return hidden_; }
  void keep_hidden(View2<const float> x) {
    hidden_ = {hidden_buffer_.ensure<float>(x.rows * x.cols), x.rows, x.cols};
    std::copy_n(x.data, x.rows * x.cols, hidden_.data);
  }
  void score(Outputs* base, std::span<const int32_t> targets) override;
  std::vector<RowScore> take_scores() override { return std::exchange(scores_, {}); }
  int64_t bytes() const override { return buffer_.bytes() + hidden_buffer_.bytes(); }
  /// Buffers for logits [n, vocab_size].
  View2<float> reserve(int64_t n, int vocab_size) {
    return rows_ = {buffer_.ensure<float>(n * vocab_size), n, vocab_size};
  }

 private:
  CpuContext& context_;
  AlignedBuffer buffer_, hidden_buffer_;
  View2<float> rows_, hidden_;
  std::vector<RowScore> scores_;
};

void CpuOutputs::score(Outputs* base, std::span<const int32_t> targets) {
  const View2<const float> base_rows = base ? base->logits() : View2<const float>();
  RIDGE_CHECK(rows_.rows == ssize(targets) && (!base || base_rows.rows == rows_.rows), "{} targets for {} rows",
              targets.size(), rows_.rows);
  const size_t first = scores_.size();
  scores_.resize(first + targets.size());
  context_.pool.for_each(rows_.rows, [&](int64_t i, int) {
    scores_[first + size_t(i)] =
        score_row(base ? base_rows.row(i) : std::span<const float>(), rows_.row(i), targets[size_t(i)]);
  });
}

/// What ranks exchange: n floats go to each of the others, and come.
Work exchange_work(const Ranks& ranks, int64_t n_sent, int64_t n_received) {
  return {4 * n_received, 4 * n_sent * (ranks.size() - 1), 0};
}

}  // namespace

std::unique_ptr<Outputs> CpuBackend::make_outputs() { return std::make_unique<CpuOutputs>(context_); }

CpuBackend::Rows CpuBackend::rows_of(int64_t n, const LayerPlan& layer) {
  return {.x = matrix(B::x, n, plan_.d_model),
          .h = matrix(B::h, n, plan_.d_model),
          .q = matrix(B::q, n, layer.attention.q_dim()),
          .attn = matrix(B::attn, n, layer.attention.q_dim()),
          .k = matrix(B::k, layer.attention.kv_layer >= 0 ? 0 : n, layer.attention.kv_dim()),
          .v = matrix(B::v, layer.attention.kv_layer >= 0 ? 0 : n, layer.attention.kv_dim()),
          .gate = matrix(B::gate, n, plan_.d_ff()),
          .up = matrix(B::up, n, plan_.d_ff())};
}

/// x[t] = row tokens[t] of the embedding, scaled.
void CpuBackend::embed(std::span<const int32_t> tokens, View2<float> x) {
  const Linear& embedding = weights_.embedding;
  const int64_t row_bytes = embedding.format->row_bytes(embedding.n_in), n = ssize(tokens);
  const TracedOp traced(context_, "embed", {}, {n * row_bytes, 4 * n * embedding.n_in, 0});
  for (int64_t t = 0; t < n; ++t) {
    const int32_t token = tokens[size_t(t)];
    RIDGE_CHECK(token >= 0 && token < embedding.n_out, "token {} of a vocabulary of {}", token, embedding.n_out);
    embedding.format->decode(embedding.rows + token * row_bytes, embedding.n_in, &x(t, 0));
    if (embedding.scale != 1)
      for (float& value : x.row(t)) value *= embedding.scale;
  }
  if (plan_.embedding_scale != 1) scale(context_, x, plan_.embedding_scale);
}

/// What layers get of each token beside the residual stream: of an embedding of their own and of x, the tokens'
/// embedding.
void CpuBackend::embed_for_layers(std::span<const int32_t> tokens, View2<const float> x) {
  const Linear& of = weights_.layer_embedding;
  const auto n = ssize(tokens), d = int64_t(plan_.layers[0].d_input);
  const View2<float> p = matrix(B::layer_inputs, n, of.n_in);
  linear(context_, weights_.layer_inputs, x, p);
  scale(context_, p, float(1 / std::sqrt(double(plan_.d_model))));
  const View2<float> parts(p.data, n * p.cols / d, d);
  rms_norm(context_, parts, weights_.layer_inputs_norm.data(), plan_.norm_eps, parts);
  const int64_t row_bytes = of.format->row_bytes(of.n_in);
  const auto of_embedding = float(std::sqrt(double(d)) * of.scale), half = float(1 / std::sqrt(2.0));
  std::vector<float> row(size_t(of.n_in));
  for (int64_t t = 0; t < n; ++t) {
    of.format->decode(of.rows + tokens[size_t(t)] * row_bytes, of.n_in, row.data());
    for (int64_t i = 0; i < p.cols; ++i) p(t, i) = (p(t, i) + row[size_t(i)] * of_embedding) * half;
  }
}

/// x += norm(input_proj(gelu(input_gate x) * what the layer gets of the token)); h is room for a block's result.
void CpuBackend::take_input(int layer, View2<float> x, View2<float> h) {
  const LayerWeights& w = weights_.layers[size_t(layer)];
  const int64_t d = plan_.layers[size_t(layer)].d_input, stride = d * ssize(plan_.layers);
  const View2<float> gate = matrix(B::layer_gate, x.rows, d),
                     inputs(buffers_[B::layer_inputs].as<float>() + layer * d, x.rows, d, stride);
  linear(context_, w.input_gate, x, gate);
  gelu_glu(context_, gate, inputs);
  linear(context_, w.input_proj, gate, h);
  norm_rows(w.input_post_norm, h, h);
  add(context_, x, h);
}

/// x: embeddings of the tokens; becomes what the layer of an MTP head reads.
void CpuBackend::join(View2<const float> hidden, View2<float> x) {
  const int64_t n = x.rows, d = x.cols;
  RIDGE_CHECK(hidden.rows == n && hidden.cols == d, "hidden states [{}, {}] for {} tokens", hidden.rows, hidden.cols,
              n);
  const View2<float> both = matrix(B::joined, n, 2 * d), states = matrix(B::normed, n, d);
  rms_norm(context_, hidden, weights_.join_hidden_norm.data(), plan_.norm_eps, states);
  rms_norm(context_, x, weights_.join_embedding_norm.data(), plan_.norm_eps, x);
  for (int64_t t = 0; t < n; ++t) {
    std::ranges::copy(x.row(t), both.row(t).begin());
    std::ranges::copy(states.row(t), both.row(t).begin() + d);
  }
  linear(context_, weights_.join, both, x);
}

/// RMSNorm of every head of x with one weight [head_dim], or of all of them together with [n_heads * head_dim].
void CpuBackend::norm_heads(View2<float> x, const std::vector<float>& weight) {
  const auto dim = int64_t(weight.size());
  const View2<float> heads(x.data, x.rows * x.cols / dim, dim);
  rms_norm(context_, heads, weight.data(), plan_.norm_eps, heads);
}

/// Adds what each rank has of the block's output.
void CpuBackend::sum_ranks(View2<float> h) {
  if (!ranks_ || stage_->size() == 1 || slice_->gathers) return;
  const int64_t n = h.rows * h.cols;
  const TracedOp traced(context_, "all_reduce", {}, exchange_work(*stage_, n, n * (stage_->size() - 1)));
  stage_->all_reduce({h.data, size_t(n)});
}

View2<float> CpuBackend::gather_columns(Ranks& ranks, View2<const float> own, const std::vector<int64_t>& borders,
                                        View2<float> whole) {
  const int64_t n = own.rows;
  const TracedOp traced(context_, "gather", {}, exchange_work(ranks, n * own.cols, n * (whole.cols - own.cols)));
  ranks.gather_columns(own, borders, whole);
  return whole;
}

/// The residual stream passes a border: each rank of stage `to` gets it from the rank of stage `from` in its place.
void CpuBackend::hand_on(int from, int to, View2<float> x) {
  if (from == to || (slice_->stage != from && slice_->stage != to)) return;
  const std::span<float> values(x.data, size_t(x.rows * x.cols));
  const int64_t bytes = ssize(std::as_bytes(values));
  const bool sends = slice_->stage == from;
  const TracedOp traced(context_, "border", {}, {sends ? 0 : bytes, sends ? bytes : 0, 0});
  // Stages up to `from` compute meanwhile, each for as long as ranks wait for one another.
  ranks_->send(slice_->rank_in(from), slice_->rank_in(to), std::as_bytes(values), std::as_writable_bytes(values),
               (from + 1) * ranks_->timeout_s());
}

void CpuBackend::hand_to_all(int from, View2<float> x) {
  for (int to = 0; slice_ && to < slice_->n_stages; ++to) hand_on(from, to, x);
}

/// RMSNorm of all heads of x together, of which ranks have parts; several ranks may have the same heads of k.
void CpuBackend::norm_whole(View2<float> x, const std::vector<float>& weight,
                            std::vector<int64_t> ModelSlice::*columns) {
  if (!ranks_) return norm_heads(x, weight);
  const std::vector<int64_t>& borders = slice_->*columns;
  const int64_t n = x.rows, n_copies = columns == &ModelSlice::kv ? slice_->kv_copies : 1,
                n_parts = slice_->size / n_copies;
  const View2<float> whole = gather_columns(*stage_, x, borders, matrix(B::whole, n, borders.back()));
  for (int64_t t = 0; t < n; ++t)
    for (int64_t part = 1; part < n_parts; ++part)
      std::copy_n(&whole(t, part * n_copies * x.cols), x.cols, &whole(t, part * x.cols));
  const View2<float> heads(whole.data, n, n_parts * x.cols, whole.stride);
  rms_norm(context_, heads, weight.data(), plan_.norm_eps, heads);
  for (int64_t t = 0; t < n; ++t) std::copy_n(&heads(t, slice_->rank / n_copies * x.cols), x.cols, &x(t, 0));
}

/// The norm of the residual stream or of what a block gives.
void CpuBackend::norm_rows(const std::vector<float>& weight, View2<float> x, View2<float> y) {
  (plan_.layer_norm ? layer_norm : rms_norm)(context_, x, weight.data(), plan_.norm_eps, y);
}

void CpuBackend::project(const Linear& w, const std::vector<float>& bias, const std::vector<float>* norm,
                         View2<float> x, const std::vector<int64_t>* borders, View2<float> h) {
  const bool gathers = ranks_ && slice_->gathers;
  if (gathers) x = gather_columns(*stage_, x, *borders, matrix(B::whole, x.rows, borders->back()));
  if (norm) rms_norm(context_, x, norm->data(), plan_.norm_eps, x);
  const View2<float> own = gathers ? matrix(B::columns, x.rows, w.n_out) : h;
  linear(context_, w, x, own);
  if (!bias.empty()) add_bias(context_, own, bias.data());
  if (gathers) gather_columns(*stage_, own, slice_->model, h);
}

/// rows.h = the gated feed-forward of rows.h.
void CpuBackend::feed_forward(int layer, const Rows& rows) {
  const DensePlan& d = plan_.layers[size_t(layer)].dense;
  const LayerWeights& w = weights_.layers[size_t(layer)];
  const View2<float> gate(rows.gate.data, rows.h.rows, d.d_ff), up(rows.up.data, rows.h.rows, d.d_ff);
  if (d.gated) linear(context_, rows.h, {{&w.gate, gate}, {&w.up, up}});
  else linear(context_, w.up, rows.h, gate);
  if (d.biases) {
    add_bias(context_, gate, w.gate_bias.data());
    add_bias(context_, up, w.up_bias.data());
  }
  if (d.gated) activate(context_, d.activation, gate, up);
  else relu2(context_, gate);
  project(w.down, w.down_bias, d.down_norm ? &w.ffn_sub_norm : nullptr, gate, slice_ ? &slice_->ff : nullptr, rows.h);
}

/// rows.h = what the experts of each row make of rows.h.
void CpuBackend::experts(int layer, const Rows& rows) {
  const LayerPlan& plan = plan_.layers[size_t(layer)];
  const ExpertsPlan& e = plan.experts;
  const LayerWeights& w = weights_.layers[size_t(layer)];
  const int64_t n = rows.h.rows;
  float* const work = buffers_[B::expert_work].ensure<float>(expert_floats(e, plan_.d_model, n));
  const View2<float> scores = matrix(B::scores, n, e.n_experts), taken(work, n, plan_.d_model),
                     in = e.beside_dense ? matrix(B::normed, n, plan_.d_model) : rows.h;  // of the experts
  if (e.beside_dense) {
    rms_norm(context_, rows.x, w.router_scale.data(), plan_.norm_eps, taken);
    scale(context_, taken, float(1 / std::sqrt(double(plan_.d_model))));
    norm_rows(w.expert_norm, rows.x, in);
  }
  linear(context_, w.router, e.beside_dense ? taken : in, scores);
  if (e.biases) add_bias(context_, scores, w.router_bias.data());
  const int n_used = e.rule.n_used;
  routes_.resize(size_t(n * n_used));
  choose_experts(context_, scores, e.rule, e.choice_bias ? w.choice_bias.data() : nullptr, routes_);
  if (e.beside_dense)
    for (Route& route : routes_) route.weight *= w.expert_scale[size_t(route.expert)];

  const View2<float> sum = matrix(B::expert_sum, n, plan_.d_model);
  const int first = slice_ ? int(slice_->first_expert()) : 0;  // of those that are here
  run_experts(context_, {.plan = e, .experts = w.experts, .first = first, .x = in, .routes = routes_, .sum = sum},
              work);
  if (e.beside_dense) {
    sum_ranks(sum);
    norm_rows(w.expert_post_norm, sum, sum);
    feed_forward(layer, rows);
    sum_ranks(rows.h);
    norm_rows(w.dense_post_norm, rows.h, rows.h);
    add(context_, sum, rows.h);
  } else if (e.shared) {
    std::vector<float> shares(e.shared_gate ? 0 : size_t(n), 1.0f);  // sigmoid(gate x)
    for (int64_t t = 0; e.shared_gate && t < n; ++t) {
      double dot = 0;
      for (int64_t d = 0; d < plan_.d_model; ++d) dot += double(rows.h(t, d)) * w.shared_gate[size_t(d)];
      shares.push_back(float(1 / (1 + std::exp(-dot))));
    }
    feed_forward(layer, rows);
    for (int64_t t = 0; t < n; ++t)
      for (int64_t d = 0; d < plan_.d_model; ++d) sum(t, d) += shares[size_t(t)] * rows.h(t, d);
  }
  std::copy_n(sum.data, n * plan_.d_model, rows.h.data);
}

/// Parts that the longest sequence of the step is in.
size_t CpuBackend::n_parts() const {
  size_t most = 0;
  for (const auto& parts : parts_) most = std::max(most, parts.size());
  return most;
}

/// Runs all layers over the step's tokens; the residual stream is in B::x of the stage that is returned.
int CpuBackend::run_layers(std::span<const int32_t> tokens, View2<const float> joined, HostKvMemory& memory) {
  const int64_t n = ssize(tokens);
  angles_.clear();
  for (const Rope& rope : plan_.ropes) angles_.emplace_back(context_, rope, positions_);
  const Rows stream = rows_of(n, plan_.layers[0]);  // its x and h, which all layers share
  int stage = 0;                                    // the one that has the residual stream
  if (!slice_ || slice_->stage == stage) embed(tokens, stream.x);
  if (weights_.join.format) join(joined, stream.x);
  if (weights_.layer_embedding.format) embed_for_layers(tokens, stream.x);
  // What a block reads, and what it adds to the residual stream. Blocks in parallel read one norm.
  const auto before = [&](const LayerPlan& layer, Block block, const std::vector<float>& norm) {
    const int64_t values = stream.x.rows * stream.x.cols;
    const bool parallel = layer.norms == NormPlace::parallel;
    if (layer.norms == NormPlace::after) std::copy_n(stream.x.data, values, stream.h.data);
    else if (parallel && block == Block::feed_forward)
      std::copy_n(buffers_[B::normed].as<float>(), values, stream.h.data);
    else norm_rows(norm, stream.x, stream.h);
    if (parallel && block == Block::mixer) std::copy_n(stream.h.data, values, buffers_[B::normed].as<float>());
  };
  const auto after = [&](const LayerPlan& layer, const std::vector<float>& norm) {
    if (layer.norms == NormPlace::after || layer.norms == NormPlace::both) norm_rows(norm, stream.h, stream.h);
    add(context_, stream.x, stream.h, layer.residual_scale);
  };
  // Who watches sees every block on every rank.
  const auto show = [&](int layer, Block block) {
    if (!on_block_) return;
    hand_to_all(stage, stream.x);
    on_block_(layer, block, stream.x);
  };
  for (int i = 0; i < ssize(plan_.layers); ++i) {
    if (context_.trace) context_.trace->layer = i;
    show(i, Block::mixer);
    hand_on(stage, stage_of(i), stream.x);
    stage = stage_of(i);
    const bool is_here = !slice_ || slice_->stage == stage;
    const LayerPlan& layer = plan_.layers[size_t(i)];
    const LayerWeights& w = weights_.layers[size_t(i)];
    const Rows rows = rows_of(n, layer);
    if (is_here && layer.mixer != MixerKind::none) {
      before(layer, Block::mixer, w.attn_norm);
      switch (layer.mixer) {
        case MixerKind::attention: attend(i, rows, memory); break;
        case MixerKind::latent: attend_latent(i, rows, memory); break;
        case MixerKind::delta: mix_delta(i, rows, memory); break;
        case MixerKind::conv: mix_conv(i, rows, memory); break;
        case MixerKind::mamba: mix_mamba(i, rows, memory); break;
        case MixerKind::none: break;
      }
      sum_ranks(stream.h);
      after(layer, w.attn_post_norm);
    }
    show(i, Block::feed_forward);
    if (is_here && layer.feed_forward != FeedForwardKind::none) {
      before(layer, Block::feed_forward, w.ffn_norm);
      switch (layer.feed_forward) {
        case FeedForwardKind::dense: feed_forward(i, rows); break;
        case FeedForwardKind::experts: experts(i, rows); break;
        case FeedForwardKind::none: break;
      }
      if (!layer.experts.beside_dense) sum_ranks(stream.h);
      after(layer, w.ffn_post_norm);
    }
    if (is_here && layer.d_input > 0) take_input(i, stream.x, stream.h);
    if (is_here && layer.scaled) scale(context_, stream.x, w.layer_scale[0]);
  }
  if (context_.trace) context_.trace->layer = -1;
  show(int(plan_.layers.size()), Block::output);
  return stage;
}

/// The same, part by part through all layers: layers that read the cache of an earlier one must see it as it is when
/// that part has been added, before the exact rows of later parts take the place of this part's.
int CpuBackend::run_in_passes(std::span<const int32_t> tokens, HostKvMemory& memory) {
  const auto d = int64_t(plan_.d_model);
  const View2<float> passed = matrix(B::passed, ssize(tokens), d);
  const auto all = std::exchange(positions_, {});
  std::vector<std::vector<KvSpan>> of_class[kPageClasses];
  for (size_t i = 0; i < kPageClasses; ++i) of_class[i] = std::exchange(parts_[i], {});
  size_t n_passes = 0;
  for (const auto& parts : of_class) n_passes = std::max(n_passes, parts.size());
  int stage = 0;
  for (size_t pass = 0; pass < n_passes; ++pass) {
    std::vector<int64_t> rows;  // of the step
    spans_.clear();
    for (size_t i = 0; i < kPageClasses; ++i) {
      parts_[i].clear();
      if (pass >= of_class[i].size()) continue;
      std::vector<KvSpan>& spans = parts_[i].emplace_back(of_class[i][pass]);
      rows.clear();
      for (KvSpan& span : spans) {
        const int first = int(ssize(rows));
        for (int row = 0; row < span.n_rows; ++row) rows.push_back(span.first_row + row);
        span.first_row = first;
      }
      spans_ = spans;
    }
    positions_.clear();
    std::vector<int32_t> own;
    for (const int64_t row : rows) {
      positions_.push_back(all[size_t(row)]);
      own.push_back(tokens[size_t(row)]);
    }
    stage = run_layers(own, {}, memory);
    const View2<const float> x = matrix(B::x, ssize(rows), d);
    for (int64_t i = 0; i < ssize(rows); ++i) std::ranges::copy(x.row(i), passed.row(rows[size_t(i)]).begin());
  }
  std::copy_n(passed.data, passed.rows * d, matrix(B::x, passed.rows, d).data);
  return stage;
}

void CpuBackend::step(const Batch& batch, const SequencePool& pool, KvMemory& kv_memory, Outputs& outputs) {
  const auto n = int64_t(batch.tokens.size());
  RIDGE_CHECK(n > 0 && n <= max_tokens(), "{} tokens in a step", n);
  auto& memory = static_cast<HostKvMemory&>(kv_memory);
  int most_rows = INT_MAX;
  for (int i = 0; i < memory.n_layers(); ++i)
    most_rows = std::min(most_rows, most_rows_at_once(memory.tiles(i, KvSide::k), memory.tiles(i, KvSide::v)));
  positions_.clear();
  for (auto& parts : parts_) parts.clear();
  spans_.clear();
  for (const SeqTokens& tokens : batch.seqs) {
    const KvSpan whole = pool.span(tokens.seq, int(positions_.size()), tokens.n_tokens);
    spans_.push_back(whole);
    if (memory.lost_from(whole.slot) >= whole.n_past) memory.set_lost_from(whole.slot, INT_MAX);  // overwritten now
    for (int i = 0; i < tokens.n_tokens; ++i) positions_.push_back(whole.n_past + i);
    for (const PageClass of : memory.page_classes()) {
      const KvSpan own = pool.span(tokens.seq, whole.first_row, tokens.n_tokens, of);
      const std::vector<KvSpan> cut = cut_span(own, most_rows, pool.calibrates(tokens.seq));
      std::vector<std::vector<KvSpan>>& parts = parts_[size_t(of)];
      if (parts.size() < cut.size()) parts.resize(cut.size());
      for (size_t i = 0; i < cut.size(); ++i) parts[i].push_back(cut[i]);
    }
  }
  RIDGE_CHECK(ssize(positions_) == n, "{} tokens, sequences bring {}", n, positions_.size());
  n_ctx_ = pool.n_ctx();

  const int64_t n_logits = batch.n_logits();
  const CpuWorkspace<int64_t> floats = cpu_workspace_floats({plan_, weights_, slice_}, n, n_logits);
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_.at(i).ensure<float>(floats.at(i));
  const bool in_passes = plan_.shares_kv() && n_parts() > 1;
  const int stage = in_passes ? run_in_passes(batch.tokens, memory) : run_layers(batch.tokens, batch.joined, memory);
  const Rows rows = rows_of(n, plan_.layers[0]);  // those of the residual stream are the same in all layers

  if (batch.hidden) {
    hand_to_all(stage, rows.x);
    static_cast<CpuOutputs&>(outputs).keep_hidden(rows.x);
  }
  const View2<float> logits = static_cast<CpuOutputs&>(outputs).reserve(n_logits, plan_.vocab_size);
  if (n_logits == 0) return;
  if (batch.logits == LogitRows::last) {
    int64_t end = 0, to = 0;
    for (const SeqTokens& tokens : batch.seqs) {
      end += tokens.n_tokens;
      const std::span<float> row = rows.x.row(end - 1);
      std::ranges::copy(row, rows.x.row(to++).begin());
    }
  }
  const View2<float> last = rows.x.slice(0, n_logits), normed = rows.h.slice(0, n_logits);
  hand_to_all(stage, last);
  norm_rows(weights_.output_norm, last, normed);
  if (ranks_) {
    const View2<float> own = matrix(B::columns, n_logits, weights_.output.n_out);
    linear(context_, weights_.output, normed, own);
    gather_columns(*ranks_, own, slice_->vocab, logits);
  } else {
    linear(context_, weights_.output, normed, logits);
  }
  if (plan_.logit_divisor != 1) scale(context_, logits, 1 / plan_.logit_divisor);
  if (plan_.logit_cap > 0) soft_cap(context_, logits, plan_.logit_cap);
}

int64_t CpuBackend::step_weight_bytes() const {
  int n_used = 0;
  for (const LayerPlan& layer : plan_.layers) n_used = std::max(n_used, layer.experts.rule.n_used);
  return decode_matrix_bytes(weights_, slice_ ? slice_->experts_used(n_used) : n_used);
}

StepBuffers CpuBackend::step_buffers() const {
  StepBuffers sum;
  for (const AlignedBuffer& buffer : buffers_) sum.activations += buffer.bytes();
  for (const AlignedBuffer& buffer : context_.scratch) sum.scratch += buffer.bytes();
  return sum;
}

std::vector<std::string> CpuBackend::kernels(const KvLayerConfig& layer) const {
  // Of the first layer that has some, here.
  const auto up_of = [](const LayerWeights& of) -> const Linear& {
    return of.experts.empty() ? of.up : of.experts[0].up;
  };
  const auto first = std::ranges::find_if(weights_.layers, [&](const LayerWeights& of) { return up_of(of).format; });
  const Linear& matrix = up_of(*first);
  const auto name = [&](std::string_view op, const auto& variants, const auto&... of) {
    return fmt::format("{}={}", op, select_variant(context_, op, variants, of...).name);
  };
  std::vector<std::string> names{name("gemv", gemv_variants(), matrix), name("gemm", gemm_variants(), matrix),
                                 name("norm_rope", norm_rope_variants()),
                                 name("kv_round", kv_round_variants(), layer.head_dim)};
  if (layer.n_kv_heads > 0) {  // else other ranks have the layer
    const AttentionProblem problem(layer, plan_.layers[size_t(plan_.first_attention())].attention.n_heads, 1);
    names.insert(names.begin() + 2, name("attention", attention_variants(), problem.get()));
  }
  const auto is_delta = [](const LayerPlan& of) { return of.mixer == MixerKind::delta; };
  if (std::ranges::any_of(plan_.layers, is_delta)) names.push_back(name("delta", delta_variants()));
  return names;
}

std::vector<int32_t> CpuBackend::sample(Outputs& outputs, std::span<const SamplerOptions> samplers,
                                        std::span<const std::vector<int32_t>> recent) {
  const View2<const float> logits = outputs.logits();
  RIDGE_CHECK(logits.rows == ssize(samplers), "{} samplers for {} rows", samplers.size(), logits.rows);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < samplers.size(); ++i) {
    Sampler sampler(samplers[i], plan_.n_ids);
    sampler.accept(recent[i]);
    tokens.push_back(sampler.sample(logits.row(int64_t(i)).first(size_t(plan_.n_ids))));
  }
  return tokens;
}

std::unique_ptr<Backend> make_cpu_backend(CpuContext& context, const ModelPlan& plan, const Weights& weights,
                                          Ranks* ranks, const ModelSlice* slice) {
  RIDGE_CHECK(!ranks == !slice, "ranks without a slice, or a slice without ranks");
  for (const LayerPlan& layer : plan.layers) {
    if (layer.mixer > MixerKind::none)
      throw_error(ErrorKind::usage, "the CPU does not compute mixer {}", mixer_name(layer.mixer));
    if (layer.feed_forward > FeedForwardKind::none)
      throw_error(ErrorKind::usage, "the CPU does not compute feed-forward {}", feed_forward_name(layer.feed_forward));
  }
  return std::make_unique<CpuBackend>(context, plan, weights, ranks, slice);
}

}  // namespace ridge
