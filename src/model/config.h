// Every hyper-parameter of a model, on one page.
#pragma once

#include <cstdint>
#include <string>

#include "op/norm_rope/norm_rope.h"

namespace ridge {

/// How RoPE frequencies are stretched past the trained context.
struct RopeScaling {
  enum class Kind : uint8_t { none, linear, yarn, llama3 } kind = Kind::none;
  float factor = 1;
  int original_context = 0;    // yarn, llama3: the context before stretching
  float attention_factor = 0;  // yarn: on cos and sin; 0 means 1 + 0.1 ln(factor)
  float beta_fast = 32;        // yarn: turns over the original context above which a pair is left alone
  float beta_slow = 1;         // yarn: turns below which a pair is fully stretched
  float low_freq_factor = 1;   // llama3
  float high_freq_factor = 4;  // llama3
};

/// What the feed-forward's gate goes through: silu(gate) * up, or max(gate, 0)^2 * up.
enum class Activation : uint8_t { silu, relu2 };

/// A decoder-only transformer: pre-norm, RoPE, grouped-query attention, gated feed-forward.
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
  int n_ctx_train = 0;  // context the model was trained for
  float rms_eps = 1e-5f;
  float rope_theta = 10000;
  int rope_dim = 0;  // rotated part of a head, usually head_dim
  RopePairs rope_pairs = RopePairs::halves;
  RopeScaling rope_scaling;
  bool qkv_bias = false;     // qwen2
  bool qk_norm = false;      // qwen3: RMSNorm of every q and k head before RoPE
  bool tied_output = false;  // logits use the embedding matrix
  Activation activation = Activation::silu;
  bool sub_norm = false;  // bitnet: RMSNorm in front of the output and the down projection
  bool ternary = false;   // bitnet: projections are ternary and take int8 activations

  int q_dim() const { return n_heads * head_dim; }
  int kv_dim() const { return n_kv_heads * head_dim; }
};

/// The angles of a config. `factors` [rope_dim/2] (GGUF's rope_freqs) divide the frequencies when not null.
Rope make_rope(const Config& config, const float* factors);

/// Refuses absurd values, each with the field's name: the bounds every loader must enforce before allocating.
Status check_config(const Config& config, std::string_view where);

}  // namespace ridge
