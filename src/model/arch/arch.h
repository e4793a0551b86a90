// Architectures as configuration: what their files call things, and which options of Config they switch on.
#pragma once

#include <map>
#include <span>
#include <string_view>

#include "io/gguf.h"
#include "model/config.h"

namespace ridge {

struct Arch {
  std::string_view name;      ///< GGUF general.architecture, and the prefix of its keys
  std::string_view hf_type;   ///< model_type of config.json
  std::string_view hf_class;  ///< architectures[0] of config.json
  std::string_view
      hf_outer;  ///< model_type of a config.json that has this one's as text_config, beside a vision tower's
  std::string_view hf_defaults =
      "{}";                  ///< JSON: what a config.json that leaves out a key means, as transformers has it
  std::string_view same_as;  ///< the architecture that it is another name of, and is written as; else empty
  RopePairs gguf_pairs;      ///< pair convention of the rows in a GGUF file
  RopePairs hf_pairs = RopePairs::halves;  ///< and in a Hugging Face directory
  bool qkv_bias = false;  ///< q, k and v have biases by default (config.json's attention_bias decides where given)
  bool qk_norm = false;   ///< q and k heads are normalised before RoPE
  Activation activation = Activation::silu;  ///< where the file does not say
  bool bitnet = false;                       ///< sub-norms and ternary projections
  bool windowed = false;  ///< a number in config.json's sliding_window is a window, whatever use_sliding_window says
  NormPlace norms = NormPlace::before;
  bool qk_norm_whole = false;   ///< with qk_norm: Config::qk_norm_whole
  bool qk_norm_varies = false;  ///< use_qk_norm of config.json, or the file's tensors, say whether there are such norms
  bool qk_norm_after_rope = false;          ///< Config::qk_norm_after_rope
  bool layer_norm = false;                  ///< Config::layer_norm
  bool logit_multiplier = false;            ///< logit_scale of a file multiplies the logits
  bool fused = false;                       ///< q, k and v are one matrix, gate and up another, rows in this order
  bool multipliers = false;                 ///< config.json has Granite's four
  bool norms_plus_one = false;              ///< a norm of a Hugging Face file multiplies by 1 + w
  bool embedding_root = false;              ///< embedded tokens are multiplied by sqrt(d_model)
  bool ffn_norm_is_post_attention = false;  ///< so a GGUF file calls the norm in front of the feed-forward
  bool gpt_oss = false;  ///< biases of o, router and experts, sink logits, and experts of several in one tensor
  bool gemma4 = false;   ///< full layers with heads of their own, a norm of v, scaled layers, a cap of logits, scale 1
  bool latent = false;   ///< latent attention
  bool indexed = false;  ///< with latent: queries choose their keys by an index
  RopePairs index_pairs = RopePairs::interleaved;  ///< of the index
  bool grouped_experts = false;  ///< experts as DeepSeek's files have them: groups, dense layers in front, a shared
                                 ///< expert without a gate, and an MTP head as the layer behind the last one
  bool experts_as_moe = false;   ///< with grouped_experts: config.json's fields are Ernie's
  bool block_sparse = false;     ///< experts are called w1, w3, w2 under block_sparse_moe; their width is d_ff
  bool sigmoid_router = false;   ///< Config::sigmoid_router of a Hugging Face directory
  bool choice_bias = false;      ///< Config::choice_bias; with sigmoid_router where the file's router is one
  bool shared_gate = false;      ///< Config::shared_gate
  bool experts = false;          ///< feed-forwards are experts where the file has some
  bool experts_renormalised = false;  ///< Config::experts_renormalised where the file does not say
  int window_period = 0;              ///< Config::window_period where the file does not say
  float window_rope_theta = 0;        ///< likewise
  int nope_period = 0;                ///< Config::nope_period where the file does not say
  bool full_without_rope = false;     ///< where layers slide, the others attend without RoPE
  bool position_scale = false;        ///< files may have Config::position_scale
  bool mamba = false;                 ///< Mamba2 in many layers, and Granite 4's names
  bool one_block = false;             ///< with mamba: Nemotron-H's names, and layers that are a mixer or a feed-forward
  bool short_conv = false;            ///< LFM2's names, and gated short convolutions in most layers
  bool delta = false;                 ///< the gated delta rule in most layers, and gated attention in the others
  bool delta_keys_cycle = false;      ///< in GGUF files: DeltaShape::keys_cycle
  bool delta_by_key_head = false;     ///< Hugging Face has q, k, v, z in one matrix, b and a in another, by key head
  bool experts_stacked = false;       ///< Hugging Face has gate and up of all experts in one tensor, down in another
};

/// The rows, in model/arch/list.cpp.
std::span<const Arch> arch_list();
/// The row of a GGUF name: some names serve models with experts and models without.
const Arch* find_arch(std::string_view gguf_name, bool experts);
/// Sets the settings that every model of the architecture has, whatever its file says.
void use_arch(const Arch& arch, Config& config);
/// The row that Config::arch names.
const Arch& arch_of(const Config& config);

/// By the names files use: silu, relu2, gelu_pytorch_tanh. The message starts with the name in quotes.
Result<Activation> find_activation(std::string_view name);
std::string_view activation_name(Activation activation);

/// Configuration of a GGUF file: metadata of its architecture, checked (check_config).
Result<Config> config_from_gguf(const io::Gguf& gguf, std::string_view where);
/// Configuration of a config.json text, checked.
/// `unknown`, where not null, gets the fields that neither Ridge nor transformers reads (model/arch/keys.h).
Result<Config> config_from_hf(std::string_view config_json, std::string_view where,
                              std::vector<std::string>* unknown = nullptr);
/// GGUF metadata of a config, for writing.
std::map<std::string, io::GgufValue, std::less<>> config_metadata(const Config& config);

/// Number of the value head, as Hugging Face files count, at place i of a GGUF file where key heads cycle.
inline int64_t cycled_head(const DeltaShape& d, int64_t i) {
  return i % d.n_key_heads * (d.n_value_heads / d.n_key_heads) + i / d.n_key_heads;
}

/// How a Hugging Face file calls the tensors of its text model.
enum class Nesting : uint8_t {
  none,      ///< model.X, lm_head.weight
  inside,    ///< model.language_model.X, lm_head.weight
  backbone,  ///< backbone.X, lm_head.weight: Nemotron-H
  outside,   ///< language_model.model.X, language_model.lm_head.weight: written before transformers 4.52
};
Nesting find_nesting(std::span<const io::Tensor> tensors);
/// A name of Nesting::none as such files have it.
std::string nested_name(Nesting nesting, std::string_view name);
/// Whether a tensor of such a file belongs to the text model, rather than to a vision tower or to what joins both.
bool is_of_text(Nesting nesting, std::string_view name);

}  // namespace ridge
