#include "model/plan.h"

#include <algorithm>
#include <cmath>

#include "model/arch/arch.h"

namespace ridge {
namespace {

template <class Width>
int widest(const ModelPlan& plan, const Width& width) {
  int most = 0;
  for (const LayerPlan& layer : plan.layers) most = std::max(most, width(layer));
  return most;
}

/// Leaves out the parts that other ranks have: no heads, no states, no columns.
void leave_out(LayerPlan& layer) {
  layer.attention.n_heads = layer.attention.n_kv_heads = 0;
  layer.delta = {};
  layer.dense.d_ff = layer.experts.d_ff = 0;
}

}  // namespace

std::string mixer_name(MixerKind kind) {
  switch (kind) {
    case MixerKind::attention: return "attention";
    case MixerKind::latent: return "latent";
    case MixerKind::delta: return "delta";
    case MixerKind::conv: return "short convolution";
    case MixerKind::mamba: return "Mamba2";
    case MixerKind::none: return "none";
  }
  return fmt::format("number {}", int(kind));
}

std::string feed_forward_name(FeedForwardKind kind) {
  switch (kind) {
    case FeedForwardKind::dense: return "dense";
    case FeedForwardKind::experts: return "experts";
    case FeedForwardKind::none: return "none";
  }
  return fmt::format("number {}", int(kind));
}

int ModelPlan::q_dim() const {
  return widest(*this, [](const LayerPlan& layer) { return layer.attention.q_dim(); });
}
int ModelPlan::kv_dim() const {
  return widest(*this, [](const LayerPlan& layer) { return layer.attention.kv_dim(); });
}
int ModelPlan::d_ff() const {
  return widest(*this, [](const LayerPlan& layer) { return std::max(layer.dense.d_ff, layer.experts.d_ff); });
}

bool ModelPlan::shares_kv() const {
  return std::ranges::any_of(layers, [](const LayerPlan& layer) { return layer.attention.kv_layer >= 0; });
}

int ModelPlan::first_attention() const {
  const auto attends = [](const LayerPlan& layer) {
    return layer.mixer == MixerKind::attention || layer.mixer == MixerKind::latent;
  };
  const auto found = std::ranges::find_if(layers, attends);
  RIDGE_CHECK(found != layers.end(), "none of {} layers attends", layers.size());
  return int(found - layers.begin());
}

ModelPlan make_plan(const Config& c, std::span<const float> rope_factors, std::span<const float> long_rope_factors) {
  const auto factors = [](std::span<const float> f) { return f.empty() ? nullptr : f.data(); };
  ModelPlan plan{.d_model = c.d_model,
                 .vocab_size = c.vocab_size,
                 .n_ids = c.n_ids > 0 ? c.n_ids : c.vocab_size,
                 .norm_eps = c.rms_eps,
                 .layer_norm = c.layer_norm,
                 .embedding_scale = c.embedding_scale,
                 .logit_divisor = c.logit_divisor,
                 .logit_cap = c.logit_cap,
                 .ropes = {make_rope(c, factors(rope_factors))}};
  if (!long_rope_factors.empty()) {
    plan.ropes.push_back(make_rope(c, factors(long_rope_factors)));
    plan.long_context = c.rope_scaling.original_context;
  }
  int window_rope = 0;
  if (c.window_rope_theta > 0 || c.window_head_dim > 0) {
    Config sliding = c;
    if (c.window_rope_theta > 0) sliding.rope_theta = c.window_rope_theta;
    if (c.window_head_dim > 0) sliding.rope_dim = c.window_head_dim;
    sliding.rope_scaling = {};
    window_rope = int(plan.ropes.size());
    plan.ropes.push_back(make_rope(sliding, nullptr));
  }
  const int no_rope = int(plan.ropes.size());
  if (c.nope_period > 0) {  // frequencies of 0 turn nothing
    Rope& none = plan.ropes.emplace_back(plan.ropes[0]);
    std::ranges::fill(none.frequency, 0.0);
    none.magnitude = 1;
  }
  int index_rope = 0;
  if (c.index_top_k > 0 && arch_of(c).index_pairs != c.rope_pairs) {
    index_rope = int(plan.ropes.size());
    plan.ropes.emplace_back(plan.ropes[0]).pairs = arch_of(c).index_pairs;
  }
  float scale = c.attention_scale > 0 ? c.attention_scale : 1.0f / std::sqrt(float(c.query_dim()));
  const RopeScaling& scaling = c.rope_scaling;
  if (scaling.score_factor > 0)
    scale *= float(std::pow(1 + scaling.score_factor * std::log(double(scaling.factor)), 2));
  for (int i = 0; i < c.n_layers; ++i) {
    LayerPlan& layer = plan.layers.emplace_back(LayerPlan{
        .mixer = MixerKind::attention,
        .attention = {.n_heads = c.n_heads,
                      .n_kv_heads = c.kv_heads_of(i),
                      .head_dim = c.head_dim_of(i),
                      .scale = scale,
                      .rope = !c.has_rope(i) ? no_rope
                              : c.slides(i)  ? window_rope
                                             : 0,
                      .qkv_bias = c.qkv_bias,
                      .o_bias = c.o_bias,
                      .sink_logits = c.sink_logits,
                      .qk_norm = c.qk_norm,
                      .qk_norm_whole = c.qk_norm_whole,
                      .qk_norm_after_rope = c.qk_norm_after_rope,
                      .k_is_v = c.has_kv(i) && !c.has_v(i),
                      .v_norm = c.v_norm,
                      .kv_layer = c.has_kv(i) ? -1 : c.kv_layer(i),
                      .position_scale = c.position_scale,
                      .position_length = c.position_length,
                      .window = c.slides(i) ? c.window : 0,
                      .out_norm = c.sub_norm,
                      .gate = c.attention_gate},
        .feed_forward = FeedForwardKind::dense,
        .dense = {.d_ff = c.d_ff_of(i), .activation = c.activation, .down_norm = c.sub_norm, .biases = c.mlp_bias},
        .norms = c.norms,
        .residual_scale = c.residual_scale});
    layer.d_input = c.d_layer_input;
    layer.scaled = c.layer_scale;
    layer.dense.gated = !c.ungated;
    if (c.kv_rank > 0) {
      layer.mixer = MixerKind::latent;
      layer.latent = {.rank = c.kv_rank,
                      .rope_dim = c.rope_dim,
                      .q_rank = c.q_rank,
                      .nope_dim = c.nope_dim,
                      .value_dim = c.value_dim,
                      .index = {c.index_heads, c.index_dim, c.index_top_k, index_rope}};
    }
    if (c.has_state(i)) layer.attention.n_heads = layer.attention.n_kv_heads = 0;
    if (c.has_conv(i)) {
      layer.mixer = MixerKind::conv;
      layer.conv = {.kernel = c.conv_kernel, .channels = c.d_model};
    }
    if (c.has_mamba(i)) {
      layer.mixer = MixerKind::mamba;
      layer.mamba = c.mamba;
    }
    if (c.has_delta(i)) {
      layer.mixer = MixerKind::delta;
      layer.attention.n_heads = layer.attention.n_kv_heads = 0;
      layer.delta = c.delta;
    }
    if (!c.has_mixer(i)) {
      layer.mixer = MixerKind::none;
      layer.attention.n_heads = layer.attention.n_kv_heads = 0;
    }
    if (!c.has_feed_forward(i)) {
      layer.feed_forward = FeedForwardKind::none;
      layer.dense.d_ff = 0;
    }
    if (!c.has_experts(i)) continue;
    layer.feed_forward = FeedForwardKind::experts;
    layer.dense.d_ff = c.d_ff_shared;
    layer.dense.biases = false;
    layer.experts = {.n_experts = c.n_experts,
                     .rule = {.n_used = c.n_experts_used,
                              .renormalised = c.experts_renormalised,
                              .sigmoid = c.sigmoid_router,
                              .n_groups = c.n_expert_groups,
                              .n_groups_used = c.n_groups_used,
                              .scale = c.expert_scale},
                     .d_ff = c.d_ff_expert,
                     .activation = c.activation,
                     .gated = !c.ungated,
                     .biases = c.expert_biases,
                     .choice_bias = c.choice_bias,
                     .shared = c.d_ff_shared > 0,
                     .shared_gate = c.shared_gate,
                     .beside_dense = c.dense_beside};
  }
  for (int i = 0; i < c.n_layers; ++i)
    if (!c.has_layer(i)) leave_out(plan.layers[size_t(i)]);
  return plan;
}

}  // namespace ridge
