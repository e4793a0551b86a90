#include "model/plan.h"

#include <algorithm>
#include <cmath>

namespace ridge {
namespace {

template <class Width>
int widest(const ModelPlan& plan, const Width& width) {
  int most = 0;
  for (const LayerPlan& layer : plan.layers) most = std::max(most, width(layer));
  return most;
}

}  // namespace

std::string mixer_name(MixerKind kind) {
  switch (kind) {
    case MixerKind::attention: return "attention";
  }
  return fmt::format("number {}", int(kind));
}

std::string feed_forward_name(FeedForwardKind kind) {
  switch (kind) {
    case FeedForwardKind::dense: return "dense";
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
  return widest(*this, [](const LayerPlan& layer) { return layer.dense.d_ff; });
}

ModelPlan make_plan(const Config& c, const float* rope_factors) {
  const LayerPlan layer{.mixer = MixerKind::attention,
                        .attention = {.n_heads = c.n_heads,
                                      .n_kv_heads = c.n_kv_heads,
                                      .head_dim = c.head_dim,
                                      .scale = 1.0f / std::sqrt(float(c.head_dim)),
                                      .qkv_bias = c.qkv_bias,
                                      .qk_norm = c.qk_norm,
                                      .out_norm = c.sub_norm},
                        .feed_forward = FeedForwardKind::dense,
                        .dense = {.d_ff = c.d_ff, .activation = c.activation, .down_norm = c.sub_norm}};
  ModelPlan plan{.d_model = c.d_model,
                 .vocab_size = c.vocab_size,
                 .norm_eps = c.rms_eps,
                 .ropes = {make_rope(c, rope_factors)},
                 .layers = std::vector<LayerPlan>(size_t(c.n_layers), layer)};
  return plan;
}

}  // namespace ridge
