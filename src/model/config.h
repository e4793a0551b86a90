// Every hyper-parameter of a model, on one page.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/extent.h"
#include "op/delta/mamba.h"
#include "op/delta/shape.h"
#include "op/norm_rope/norm_rope.h"

namespace ridge {

/// How RoPE frequencies are stretched past the trained context.
struct RopeScaling {
  enum class Kind : uint8_t { none, linear, yarn, llama3, longrope, proportional } kind = Kind::none;
  float factor = 1;
  int original_context = 0;    // yarn, llama3, longrope: the context before stretching
  float attention_factor = 0;  // on cos and sin; 0: 1, and of yarn 1 + 0.1 ln(factor)
  float score_factor = 0;      // yarn of latent attention: scores are multiplied by (1 + score_factor ln(factor))^2
  float beta_fast = 32;        // yarn: turns over the original context above which a pair is left alone
  bool truncate = true;        // yarn: the ends of the ramp are whole pairs
  float beta_slow = 1;         // yarn: turns below which a pair is fully stretched
  float low_freq_factor = 1;   // llama3
  float high_freq_factor = 4;  // llama3
  std::vector<float> short_factors, long_factors;  // longrope of a config.json: [rope_dim / 2] each; GGUF has tensors
  int turned_pairs = 0;  // proportional: the first pairs, which alone turn; a GGUF file has a tensor
};

/// Activation of the feed-forward's gate: silu(gate) * up, max(gate, 0)^2 * up, gelu(gate) * up (tanh form), or
/// gpt-oss's function of both (clamped_swiglu).
enum class Activation : uint8_t { silu, relu2, gelu_tanh, clamped_swiglu };

/// Where a block has its norms: x += block(norm(x)), x += norm(block(x)), or both. In parallel: attention and
/// feed-forward read one norm of x, and x += attention(norm(x)) + feed_forward(norm(x)).
enum class NormPlace : uint8_t { before, after, both, parallel };

/// A decoder-only transformer: RMSNorm, RoPE, grouped-query attention, gated feed-forward.
struct Config {
  std::string arch;  // row of model/arch/list.cpp: "llama", "qwen2", "qwen3", "bitnet"
  std::string name;
  int n_layers = 0;
  int n_heads = 0;     // query heads
  int n_kv_heads = 0;  // key/value heads; divides n_heads
  int head_dim = 0;    // n_heads * head_dim need not equal d_model
  int d_model = 0;
  int d_ff = 0;
  int vocab_size = 0;
  int n_ids = 0;        ///< ids from here on are never sampled: padding, rows without a token; 0: all rows are tokens
  int n_ctx_train = 0;  // context the model was trained for
  float rms_eps = 1e-5f;
  float rope_theta = 10000;
  int rope_dim = 0;  // rotated part of a head, usually head_dim
  RopePairs rope_pairs = RopePairs::halves;
  RopeScaling rope_scaling;
  bool qkv_bias = false;       // qwen2
  bool o_bias = false;         // gpt-oss, and files whose attention has biases
  bool mlp_bias = false;       // of gate, up and down of the dense feed-forward
  bool sink_logits = false;    // gpt-oss: a learned score a head that takes its share of the softmax and adds no value
  bool qk_norm = false;        // qwen3: RMSNorm of every q and k head before RoPE
  bool qk_norm_whole = false;  // olmo2: with qk_norm, RMSNorm over all heads of q, and of k, together
  bool qk_norm_after_rope = false;  // hunyuan: the norm of q and k heads comes behind RoPE
  NormPlace norms = NormPlace::before;
  bool layer_norm = false;       // cohere2: norms take the mean off first (LayerNorm without a bias)
  int window = 0;                // layers that slide see the newest so many positions; 0: none does
  int window_period = 0;         // layers period - 1, 2 period - 1, ... see everything; 0: all layers slide
  float window_rope_theta = 0;   // of the layers that slide, without scaling; 0: as the others
  int window_head_dim = 0;       // of the layers that slide, all of which RoPE turns; 0: as the others
  int window_kv_heads = 0;       // of the layers that slide; 0: as the others
  std::vector<int> full_layers;  // that see everything whatever the period says, in rising order
  bool full_k_is_v = false;      // gemma4: layers that see everything have as V the projection of K before its norm
  int shared_kv_layers = 0;   // gemma4: the last layers, which read K and V of the last layer of their kind with some
  bool wide_sharing = false;  // whose dense feed-forward is twice d_ff wide
  int d_layer_input = 0;      // gemma4: values that a layer gets of each token, from an embedding of its own; 0: none
  bool v_norm = false;        // gemma4: RMSNorm without a weight of every v head
  bool layer_scale = false;   // gemma4: a number by which the residual stream is multiplied behind each layer
  int nope_period = 0;        // layers period - 1, 2 period - 1, ... attend without RoPE; 0: none does
  float position_scale = 0;   // ministral3: queries times 1 + position_scale ln(1 + floor(position / position_length))
  int position_length = 0;
  // Latent attention (deepseek2): kv_rank > 0. A token's row is kv_rank latent values and rope_dim values that RoPE
  // turns; n_kv_heads is 1 and head_dim the width of the row, as attention in the latent space has them.
  int kv_rank = 0;
  int q_rank = 0;     // > 0: queries go through so many values with a norm; 0: one matrix
  int nope_dim = 0;   // of a query head, in front of its rope_dim
  int value_dim = 0;  // of a head's output
  // A choice of keys (deepseek v3.2, glm 5): queries of latent attention attend to the index_top_k positions that an
  // index of index_heads query heads and one key of index_dim values finds best. index_top_k 0: to all.
  int index_heads = 0, index_dim = 0, index_top_k = 0;
  // Experts: in place of the feed-forward of all layers but the dense ones. n_experts 0: none.
  int n_experts = 0, n_experts_used = 0;
  int d_ff_expert = 0;
  int d_ff_shared = 0;                // of the expert that every token takes; 0: none
  bool dense_beside = false;          // gemma4: a dense feed-forward of d_ff_shared beside the experts, each with norms
  bool expert_biases = false;         // of the router and of every expert's matrices
  bool experts_renormalised = false;  // the weights of a token's experts add up to 1
  bool sigmoid_router = false;        // scores go through a sigmoid in the place of a softmax
  bool choice_bias = false;           // experts are chosen by score + bias, and weighted by score
  bool shared_gate = false;           // the shared expert is multiplied by a sigmoid
  int n_expert_groups = 1;            // experts are chosen from the best n_groups_used of so many groups
  int n_groups_used = 1;
  float expert_scale = 1;         // on the weights of a token's experts
  std::vector<int> dense_layers;  // in rising order
  // The gated delta rule: the mixer of all layers but delta_period - 1, 2 delta_period - 1, ... delta.n_key_heads 0: of
  // none.
  DeltaShape delta;
  int delta_period = 0;
  // Layers that keep a state where others attend, in rising order: gated short convolutions of conv_kernel tokens
  // (lfm2), or Mamba2 (granite 4).
  std::vector<int> state_layers;
  int conv_kernel = 0;
  MambaShape mamba;
  std::vector<int> ff_layers;   // nemotron_h: that are a feed-forward alone, in rising order, as the others are a mixer
                                // alone; empty: every layer is both
  bool ungated = false;         // nemotron_h: feed-forwards and experts have no gate: down(activation(up x))
  bool attention_gate = false;  // qwen3.5: the query projection has a gate of the output behind each head's query
  std::vector<int64_t> rope_sections;  // of positions in images, which text does not have; written to GGUF files
  float attention_scale = 0;           // on the scores; 0: 1 / sqrt(head_dim)
  float embedding_scale = 1;           // on the embedded tokens
  float residual_scale = 1;            // on what a block adds to the residual stream
  float logit_divisor = 1;
  float logit_cap = 0;       // > 0: logits become logit_cap tanh(logits / logit_cap)
  bool tied_output = false;  // logits use the embedding matrix
  Activation activation = Activation::silu;
  bool sub_norm = false;  // bitnet: RMSNorm in front of the output and the down projection
  bool ternary = false;   // bitnet: projections are ternary and take int8 activations
  Extent here;            // of a rank of one of several stages: its layers, as the others have no weights; count 0: all

  bool has_window_heads(int layer) const { return slides(layer) && window_head_dim > 0; }
  int head_dim_of(int layer) const { return has_window_heads(layer) ? window_head_dim : head_dim; }
  int kv_heads_of(int layer) const { return slides(layer) && window_kv_heads > 0 ? window_kv_heads : n_kv_heads; }
  /// The configuration of a layer's attention, of which all layers have that layer's heads.
  Config of_layer(int layer) const;
  int q_dim(int layer) const { return n_heads * head_dim_of(layer); }
  int kv_dim(int layer) const { return kv_heads_of(layer) * head_dim_of(layer); }
  /// Width of a head's query and of all heads' values, as their matrices have them.
  int query_dim() const { return kv_rank > 0 ? nope_dim + rope_dim : head_dim; }
  int value_width(int layer) const { return kv_rank > 0 ? n_heads * value_dim : q_dim(layer); }
  /// Rows of the query projection.
  int q_rows(int layer) const { return (attention_gate ? 2 : 1) * q_dim(layer); }
  /// `n` shared experts are one of n times the width.
  void set_shared_experts(int n) { d_ff_shared = int(std::min<int64_t>(int64_t(n) * d_ff_expert, 1 << 30)); }
  /// The first `n` layers have no experts.
  void set_dense_in_front(int n) {
    for (int i = 0; i < std::min(n, n_layers); ++i) dense_layers.push_back(i);
  }
  bool has_experts(int layer) const;
  bool has_layer(int layer) const { return here.count == 0 || (layer >= here.first && layer < here.end()); }
  int n_cached_layers() const;
  /// Sets period and full_layers from which layers slide, one value a layer; the window must be known.
  void set_sliding(const std::vector<bool>& which);
  bool has_delta(int layer) const { return delta.n_key_heads > 0 && layer % delta_period < delta_period - 1; }
  bool has_state(int layer) const;
  bool has_conv(int layer) const { return conv_kernel > 0 && has_state(layer); }
  bool has_mamba(int layer) const { return mamba.n_heads > 0 && has_state(layer); }
  bool has_mixer(int layer) const { return !std::ranges::binary_search(ff_layers, layer); }
  bool has_feed_forward(int layer) const { return ff_layers.empty() || !has_mixer(layer); }
  bool attends(int layer) const { return has_mixer(layer) && !has_delta(layer) && !has_state(layer); }
  bool has_rope(int layer) const { return nope_period == 0 || layer % nope_period != nope_period - 1; }
  bool slides(int layer) const {
    return window > 0 && (window_period == 0 || layer % window_period < window_period - 1) &&
           !std::ranges::binary_search(full_layers, layer);
  }
  /// Whether a layer that attends has K and V of its own, and a projection of V.
  bool has_kv(int layer) const { return layer < n_layers - shared_kv_layers || layer >= n_layers; }
  bool has_v(int layer) const { return has_kv(layer) && (!full_k_is_v || slides(layer)); }
  /// The layer whose K and V a layer reads: itself, or where it has none the last of its kind that has; -1: no layer.
  int kv_layer(int layer) const;
  int d_ff_of(int layer) const { return wide_sharing && !has_kv(layer) ? 2 * d_ff : d_ff; }
};

inline constexpr int kMaxLayers = 1024;

/// Factor of YaRN on cosines and sines: 1 + 0.1 share ln(factor).
float yarn_magnitude(float factor, float share = 1);
/// The angles of a config. `factors` [rope_dim/2] (GGUF's rope_freqs) divide the frequencies when not null.
Rope make_rope(const Config& config, const float* factors);

/// Refuses absurd values, each with the field's name: the bounds every loader must enforce before allocating.
Status check_config(const Config& config, std::string_view where);

}  // namespace ridge
