// What a model computes, as data: one page that every backend reads (engine/cpu_backend.cpp, cuda_runner_cuda.cpp). A
// kind that a backend does not compute is refused by its name when the model is opened.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "op/experts/route.h"
#include "op/norm_rope/norm_rope.h"

namespace ridge {

/// How tokens of a sequence learn from each other.
enum class MixerKind : uint8_t {
  attention,  ///< over a KV cache
  latent,     ///< attention in the space of one latent row a token, which is K and V of all heads
  delta,      ///< the gated delta rule, over a state of fixed size
  conv,       ///< a gated convolution of the newest tokens, which are a state of fixed size
  mamba,      ///< Mamba2, over a state of fixed size
  none,       ///< the layer is its feed-forward alone
};
/// What each token goes through alone.
enum class FeedForwardKind : uint8_t {
  dense,
  experts,  ///< a token goes through a few of many, which a router chooses
  none,     ///< the layer is its mixer alone
};
std::string mixer_name(MixerKind kind);
std::string feed_forward_name(FeedForwardKind kind);

/// softmax(scale q k) v over a KV cache; q, k and v are projections, q and k are turned by RoPE.
struct AttentionPlan {
  int n_heads = 0;     ///< query heads
  int n_kv_heads = 0;  ///< divides n_heads
  int head_dim = 0;
  float scale = 0;  ///< on the scores
  int rope = 0;     ///< of ModelPlan::ropes
  bool qkv_bias = false;
  bool o_bias = false;
  bool sink_logits = false;         ///< a learned score a head that takes its share of the softmax and adds no value
  bool qk_norm = false;             ///< RMSNorm of every q and k head before RoPE
  bool qk_norm_whole = false;       ///< with qk_norm: of all heads together
  bool qk_norm_after_rope = false;  ///< with qk_norm: behind RoPE in the place of before
  bool k_is_v = false;              ///< V is the projection of K, before its norm
  bool v_norm = false;              ///< RMSNorm without a weight of every v head
  int kv_layer = -1;                ///< the layer whose K and V this one reads; -1: its own
  float position_scale = 0;         ///< > 0: queries times 1 + position_scale ln(1 + floor(position / position_length))
  int position_length = 0;
  int window = 0;         ///< > 0: a query sees the newest so many positions only, its own among them
  bool out_norm = false;  ///< RMSNorm in front of the output projection
  bool gate = false;      ///< the result times sigmoid(gate x); each head's gate is projected behind its query

  int q_dim() const { return n_heads * head_dim; }
  int q_rows() const { return (gate ? 2 : 1) * q_dim(); }  ///< of the query projection
  int kv_dim() const { return n_kv_heads * head_dim; }
  /// The layer that keeps the K and V which this one, number `layer`, reads.
  int kept_by(int layer) const { return kv_layer >= 0 ? kv_layer : layer; }
};

/// By what queries choose their keys (op/attn/chosen_keys.h): query heads q_b low of the low-rank query, one key
/// norm(k x) a token, a LayerNorm, RoPE on their first values, and a weight of each head.
struct IndexPlan {
  int n_heads = 0;
  int dim = 0;
  int top_k = 0;  ///< 0: there is no index, a query attends to all positions
  int rope = 0;   ///< of ModelPlan::ropes
};
/// Around the AttentionPlan of a latent layer: its one kv head is the row [norm(kv_a x), rope part], head_dim = rank +
/// rope_dim; a query head is [k_b q_nope, q_rope] and a head's output v_b applied to the first `rank` values of what
/// attention gives.
struct LatentPlan {
  int rank = 0;
  int rope_dim = 0;
  int q_rank = 0;    ///< > 0: q = q_b norm(q_a x), else q is one matrix
  int nope_dim = 0;  ///< of a query head, in front of its rope_dim
  int value_dim = 0;
  IndexPlan index;

  int query_dim() const { return nope_dim + rope_dim; }
};
/// output(norm(delta(qkv x)) * silu(z x)), the norm over each value head: op/delta/delta.h.
using DeltaPlan = DeltaShape;

/// output(c * convolution(b * x)) of [b, c, x] = conv_in h, channel by channel: op/delta/short_conv.h.
struct ConvPlan {
  int kernel = 0;  ///< tokens that a channel sees, its own among them
  int channels = 0;
  int64_t state_values() const { return int64_t(kernel > 0 ? kernel - 1 : 0) * channels; }
};

/// output(norm(mamba2(in h) * silu(z))), a norm over the values of each group: op/delta/mamba.h.
using MambaPlan = MambaShape;

/// down(activation(gate x) * (up x)), or without a gate down(max(up x, 0)^2)
struct DensePlan {
  int d_ff = 0;
  Activation activation = Activation::silu;
  bool down_norm = false;  ///< RMSNorm in front of the down projection
  bool biases = false;     ///< of all three projections
  bool gated = true;
};

/// sum of weight_e expert_e(x) over the experts that the router chooses (ExpertRule); each expert is a DensePlan. The
/// expert that every token takes, where there is one, is LayerPlan::dense, times sigmoid(gate x) where it has a gate.
struct ExpertsPlan {
  int n_experts = 0;
  ExpertRule rule;
  int d_ff = 0;
  Activation activation = Activation::silu;
  bool gated = true;         ///< as DensePlan has it
  bool biases = false;       ///< of the router and of every expert's matrices
  bool choice_bias = false;  ///< of the router: added to scores for the choice alone
  bool shared = false;       ///< LayerPlan::dense is the shared expert; else there is none
  bool shared_gate = false;
  bool on_host = false;  ///< of a model on a device: in host memory, and the CPU computes them (model/expert_place.h)
  int n_cached = 0;      ///< of those on the host: so many, which are chosen most often, are on the device as well
  /// x += norm(norm(dense(h)) + norm(experts(norm(x)))) for h = norm(x): the dense feed-forward is LayerPlan::dense.
  /// The router reads x / sqrt(mean x^2 d_model) times a vector of its own, and each expert's weight has a factor.
  bool beside_dense = false;
};

/// x += s mixer(norm(x)); x += s feed_forward(norm(x)); norms in front of a block, behind it, or both. In parallel:
/// x += s (mixer(norm(x)) + feed_forward(norm(x))).
struct LayerPlan {
  MixerKind mixer = MixerKind::attention;
  AttentionPlan attention;  ///< without heads in a delta layer, and in a layer that other ranks have
  LatentPlan latent;
  DeltaPlan delta;
  ConvPlan conv;
  MambaPlan mamba;
  FeedForwardKind feed_forward = FeedForwardKind::dense;
  DensePlan dense;
  ExpertsPlan experts;
  NormPlace norms = NormPlace::before;
  float residual_scale = 1;  ///< s
  /// > 0: behind the feed-forward, x += norm(input_proj(gelu(input_gate x) * p)) for the layer's p of the token, so
  /// many values (ModelPlan::layer_inputs).
  int d_input = 0;
  bool scaled = false;  ///< behind the layer x is multiplied by a number of its own

  bool attends() const { return mixer == MixerKind::attention || mixer == MixerKind::latent; }
  /// Whether a sequence has a state of fixed size here in the place of a KV cache.
  bool keeps_state() const {
    return mixer == MixerKind::delta || mixer == MixerKind::conv || mixer == MixerKind::mamba;
  }
};

struct ModelPlan {
  int d_model = 0;
  int vocab_size = 0;
  int n_ids = 0;  ///< of these rows, those that are sampled
  float norm_eps = 0;
  bool layer_norm = false;  ///< norms of the residual stream take the mean of a row off first
  float embedding_scale = 1;
  float logit_divisor = 1;
  float logit_cap = 0;  ///< > 0: logits become logit_cap tanh(logits / logit_cap)
  std::vector<Rope> ropes;
  int long_context = 0;  ///< > 0: of LongRoPE: a context that may grow beyond takes the rope after each layer's own

  /// Number of the rope of a layer's attention in a context of at most n_ctx positions.
  int rope_of(const AttentionPlan& attention, int n_ctx) const {
    return attention.rope + (long_context > 0 && n_ctx > long_context ? 1 : 0);
  }
  std::vector<LayerPlan> layers;

  /// Whether layers read K and V of other ones.
  bool shares_kv() const;
  /// Widest rows of any layer.
  int q_dim() const;
  int kv_dim() const;
  int d_ff() const;
  /// Number of the first layer that attends.
  int first_attention() const;
};

/// The plan of a configuration. Factors [rope_dim / 2] as make_rope() takes them, or empty; `long_rope_factors` are
/// those of a long context where `rope_factors` are of a short one.
ModelPlan make_plan(const Config& config, std::span<const float> rope_factors = {},
                    std::span<const float> long_rope_factors = {});

}  // namespace ridge
