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
  RopePairs gguf_pairs;   ///< pair convention of the rows in a GGUF file (HF files have halves, latent ones neighbours)
  bool qkv_bias = false;  ///< q, k and v have biases by default (config.json's attention_bias decides where given)
  bool qk_norm = false;   ///< q and k heads are normalised before RoPE
  Activation activation = Activation::silu;  ///< where the file does not say
  bool bitnet = false;                       ///< sub-norms and ternary projections
  bool windowed = false;  ///< a number in config.json's sliding_window is a window, whatever use_sliding_window says
  NormPlace norms = NormPlace::before;
  bool qk_norm_whole = false;               ///< with qk_norm: Config::qk_norm_whole
  bool fused = false;                       ///< q, k and v are one matrix, gate and up another, rows in this order
  bool multipliers = false;                 ///< config.json has Granite's four
  bool norms_plus_one = false;              ///< a norm of a Hugging Face file multiplies by 1 + w
  bool embedding_root = false;              ///< embedded tokens are multiplied by sqrt(d_model)
  bool ffn_norm_is_post_attention = false;  ///< so a GGUF file calls the norm in front of the feed-forward
  bool gpt_oss = false;         ///< biases of o, router and experts, sink logits, and experts of several in one tensor
  bool latent = false;          ///< latent attention, a router with groups, dense layers in front
  bool sigmoid_router = false;  ///< Config::sigmoid_router of a Hugging Face directory
  bool experts = false;         ///< feed-forwards are experts where the file has some
  bool experts_renormalised = false;  ///< Config::experts_renormalised where the file does not say
  int window_period = 0;              ///< Config::window_period where the file does not say
  float window_rope_theta = 0;        ///< likewise
  bool delta = false;                 ///< the gated delta rule in most layers, and gated attention in the others
  bool delta_keys_cycle = false;      ///< in GGUF files: DeltaShape::keys_cycle
  bool delta_by_key_head = false;     ///< Hugging Face has q, k, v, z in one matrix, b and a in another, by key head
  bool experts_stacked = false;       ///< Hugging Face has gate and up of all experts in one tensor, down in another
};

/// The rows, in model/arch/list.cpp.
std::span<const Arch> arch_list();
/// What every model of the architecture has, whatever its file says.
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

/// Where the rows of the gated delta rule's parts are in matrices that have them by key head: q, k, the values and the z
/// of its value heads in one, b and a of its value heads in the other.
struct DeltaRows {
  explicit DeltaRows(const DeltaShape& shape);
  std::vector<int64_t> qkv, z, b, a;
};
/// Number of the value head, as Hugging Face files count, at place i of a GGUF file where key heads cycle.
inline int64_t cycled_head(const DeltaShape& d, int64_t i) {
  return i % d.n_key_heads * (d.n_value_heads / d.n_key_heads) + i / d.n_key_heads;
}

/// How a Hugging Face file calls the tensors of its text model.
enum class Nesting : uint8_t {
  none,     ///< model.X, lm_head.weight
  inside,   ///< model.language_model.X, lm_head.weight
  outside,  ///< language_model.model.X, language_model.lm_head.weight: written before transformers 4.52
};
Nesting find_nesting(std::span<const io::Tensor> tensors);
/// A name of Nesting::none as such files have it.
std::string nested_name(Nesting nesting, std::string_view name);
/// Whether a tensor of such a file belongs to the text model, rather than to a vision tower or to what joins both.
bool is_of_text(Nesting nesting, std::string_view name);

/// Every tensor a model of this family may have.
namespace tensor_names {
/// Names of one weight in both containers; "{}" stands for the layer.
struct Name {
  std::string_view gguf;
  std::string_view hf;
};
inline constexpr Name kEmbedding{"token_embd.weight", "model.embed_tokens.weight"};
inline constexpr Name kOutputNorm{"output_norm.weight", "model.norm.weight"};
inline constexpr Name kOutput{"output.weight", "lm_head.weight"};
inline constexpr Name kAttnNorm{"blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"};
inline constexpr Name kQ{"blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight"};
inline constexpr Name kK{"blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight"};
inline constexpr Name kV{"blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight"};
inline constexpr Name kQBias{"blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias"};
inline constexpr Name kKBias{"blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias"};
inline constexpr Name kVBias{"blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias"};
inline constexpr Name kQNorm{"blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.q_norm.weight"};
inline constexpr Name kKNorm{"blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.k_norm.weight"};
inline constexpr Name kAttnSubNorm{"blk.{}.attn_sub_norm.weight", "model.layers.{}.self_attn.attn_sub_norm.weight"};
inline constexpr Name kO{"blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight"};
inline constexpr Name kQkv{"blk.{}.attn_qkv.weight", "model.layers.{}.self_attn.qkv_proj.weight"};
inline constexpr Name kFfnNorm{"blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"};
// Of models with norms behind their blocks, where Hugging Face's names of norms mean other places.
inline constexpr Name kAttnPostNorm{"blk.{}.post_attention_norm.weight",
                                    "model.layers.{}.post_attention_layernorm.weight"};
inline constexpr Name kFfnNormBetween{"blk.{}.ffn_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight"};
inline constexpr Name kFfnPostNorm{"blk.{}.post_ffw_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight"};
inline constexpr Name kGateUp{"blk.{}.ffn_up.weight", "model.layers.{}.mlp.gate_up_proj.weight"};
inline constexpr Name kGate{"blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight"};
inline constexpr Name kUp{"blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight"};
inline constexpr Name kOBias{"blk.{}.attn_output.bias", "model.layers.{}.self_attn.o_proj.bias"};
inline constexpr Name kGateBias{"blk.{}.ffn_gate.bias", "model.layers.{}.mlp.gate_proj.bias"};
inline constexpr Name kUpBias{"blk.{}.ffn_up.bias", "model.layers.{}.mlp.up_proj.bias"};
inline constexpr Name kDownBias{"blk.{}.ffn_down.bias", "model.layers.{}.mlp.down_proj.bias"};
inline constexpr Name kSinkLogits{"blk.{}.attn_sinks.weight", "model.layers.{}.self_attn.sinks"};
// Of gpt-oss. Hugging Face has gate and up of all experts in one tensor [n_experts, d_model, 2 d_ff], gates in the even
// columns, and down as [n_experts, d_ff, d_model].
inline constexpr Name kOssRouter{"blk.{}.ffn_gate_inp.weight", "model.layers.{}.mlp.router.weight"};
inline constexpr Name kOssRouterBias{"blk.{}.ffn_gate_inp.bias", "model.layers.{}.mlp.router.bias"};
inline constexpr Name kOssGate{"blk.{}.ffn_gate_exps.weight", "model.layers.{}.mlp.experts.gate_up_proj"};
inline constexpr Name kOssUp{"blk.{}.ffn_up_exps.weight", "model.layers.{}.mlp.experts.gate_up_proj"};
inline constexpr Name kOssDown{"blk.{}.ffn_down_exps.weight", "model.layers.{}.mlp.experts.down_proj"};
inline constexpr Name kOssGateBias{"blk.{}.ffn_gate_exps.bias", "model.layers.{}.mlp.experts.gate_up_proj_bias"};
inline constexpr Name kOssUpBias{"blk.{}.ffn_up_exps.bias", "model.layers.{}.mlp.experts.gate_up_proj_bias"};
inline constexpr Name kOssDownBias{"blk.{}.ffn_down_exps.bias", "model.layers.{}.mlp.experts.down_proj_bias"};
// Of experts; the second "{}" of a Hugging Face name stands for the expert.
inline constexpr Name kRouter{"blk.{}.ffn_gate_inp.weight", "model.layers.{}.mlp.gate.weight"};
inline constexpr Name kExpertGate{"blk.{}.ffn_gate_exps.weight", "model.layers.{}.mlp.experts.{}.gate_proj.weight"};
inline constexpr Name kExpertUp{"blk.{}.ffn_up_exps.weight", "model.layers.{}.mlp.experts.{}.up_proj.weight"};
inline constexpr Name kExpertDown{"blk.{}.ffn_down_exps.weight", "model.layers.{}.mlp.experts.{}.down_proj.weight"};
inline constexpr Name kSharedGate{"blk.{}.ffn_gate_shexp.weight", "model.layers.{}.mlp.shared_expert.gate_proj.weight"};
inline constexpr Name kSharedUp{"blk.{}.ffn_up_shexp.weight", "model.layers.{}.mlp.shared_expert.up_proj.weight"};
inline constexpr Name kSharedDown{"blk.{}.ffn_down_shexp.weight", "model.layers.{}.mlp.shared_expert.down_proj.weight"};
inline constexpr Name kSharedExpertGate{"blk.{}.ffn_gate_inp_shexp.weight",
                                        "model.layers.{}.mlp.shared_expert_gate.weight"};
// Of latent attention. Hugging Face has k_b and v_b in one matrix [n_heads * (nope_dim + value_dim), kv_rank]; GGUF has
// them apart, k_b transposed: [n_heads, kv_rank, nope_dim] and [n_heads, value_dim, kv_rank].
inline constexpr Name kQA{"blk.{}.attn_q_a.weight", "model.layers.{}.self_attn.q_a_proj.weight"};
inline constexpr Name kQANorm{"blk.{}.attn_q_a_norm.weight", "model.layers.{}.self_attn.q_a_layernorm.weight"};
inline constexpr Name kQB{"blk.{}.attn_q_b.weight", "model.layers.{}.self_attn.q_b_proj.weight"};
inline constexpr Name kKvA{"blk.{}.attn_kv_a_mqa.weight", "model.layers.{}.self_attn.kv_a_proj_with_mqa.weight"};
inline constexpr Name kKvANorm{"blk.{}.attn_kv_a_norm.weight", "model.layers.{}.self_attn.kv_a_layernorm.weight"};
inline constexpr Name kLatentK{"blk.{}.attn_k_b.weight", "model.layers.{}.self_attn.kv_b_proj.weight"};
inline constexpr Name kLatentV{"blk.{}.attn_v_b.weight", "model.layers.{}.self_attn.kv_b_proj.weight"};
// Of its experts.
inline constexpr Name kChoiceBias{"blk.{}.exp_probs_b.bias", "model.layers.{}.mlp.gate.e_score_correction_bias"};
inline constexpr Name kSharedGates{"blk.{}.ffn_gate_shexp.weight",
                                   "model.layers.{}.mlp.shared_experts.gate_proj.weight"};
inline constexpr Name kSharedUps{"blk.{}.ffn_up_shexp.weight", "model.layers.{}.mlp.shared_experts.up_proj.weight"};
inline constexpr Name kSharedDowns{"blk.{}.ffn_down_shexp.weight",
                                   "model.layers.{}.mlp.shared_experts.down_proj.weight"};
// Of qwen3_5_moe: [n_experts, 2 d_ff, d_model], gates first, and [n_experts, d_model, d_ff].
inline constexpr Name kStackedGateUp{"", "model.layers.{}.mlp.experts.gate_up_proj"};
inline constexpr Name kStackedDown{"", "model.layers.{}.mlp.experts.down_proj"};
// Of the gated delta rule.
inline constexpr Name kDeltaQkv{"blk.{}.attn_qkv.weight", "model.layers.{}.linear_attn.in_proj_qkv.weight"};
inline constexpr Name kDeltaZ{"blk.{}.attn_gate.weight", "model.layers.{}.linear_attn.in_proj_z.weight"};
inline constexpr Name kDeltaQkvz{"", "model.layers.{}.linear_attn.in_proj_qkvz.weight"};
inline constexpr Name kDeltaA{"blk.{}.ssm_alpha.weight", "model.layers.{}.linear_attn.in_proj_a.weight"};
inline constexpr Name kDeltaB{"blk.{}.ssm_beta.weight", "model.layers.{}.linear_attn.in_proj_b.weight"};
inline constexpr Name kDeltaBa{"blk.{}.ssm_ba.weight", "model.layers.{}.linear_attn.in_proj_ba.weight"};
inline constexpr Name kDeltaConv{"blk.{}.ssm_conv1d.weight", "model.layers.{}.linear_attn.conv1d.weight"};
inline constexpr Name kDeltaDecay{"blk.{}.ssm_a", "model.layers.{}.linear_attn.A_log"};  // GGUF: -exp of it
inline constexpr Name kDeltaDtBias{"blk.{}.ssm_dt.bias", "model.layers.{}.linear_attn.dt_bias"};
inline constexpr Name kDeltaNorm{"blk.{}.ssm_norm.weight", "model.layers.{}.linear_attn.norm.weight"};
inline constexpr Name kDeltaOut{"blk.{}.ssm_out.weight", "model.layers.{}.linear_attn.out_proj.weight"};
/// Of the head for the token after the next one: a block behind the last one, with these beside a layer's tensors.
struct NextNames {
  Name join, embedding_norm, hidden_norm, output_norm;
  Name embedding, output;  ///< of its own, where it has them
};
/// In Hugging Face files under mtp., its layer under mtp.layers.0.
inline constexpr NextNames kNext{{"blk.{}.nextn.eh_proj.weight", "mtp.fc.weight"},
                                 {"blk.{}.nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"},
                                 {"blk.{}.nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight"},
                                 {"blk.{}.nextn.shared_head_norm.weight", "mtp.norm.weight"},
                                 {"blk.{}.nextn.embed_tokens.weight", "mtp.embed_tokens.weight"},
                                 {"blk.{}.nextn.shared_head_head.weight", "mtp.lm_head.weight"}};
/// In DeepSeek-V3's all under model.layers.N, N being the number of layers.
inline constexpr NextNames kNextBehind{{kNext.join.gguf, "model.layers.{}.eh_proj.weight"},
                                       {kNext.embedding_norm.gguf, "model.layers.{}.enorm.weight"},
                                       {kNext.hidden_norm.gguf, "model.layers.{}.hnorm.weight"},
                                       {kNext.output_norm.gguf, "model.layers.{}.shared_head.norm.weight"},
                                       {kNext.embedding.gguf, "model.layers.{}.embed_tokens.weight"},
                                       {kNext.output.gguf, "model.layers.{}.shared_head.head.weight"}};
inline const NextNames& next_names(const Arch& arch) { return arch.latent ? kNextBehind : kNext; }
inline constexpr Name kFfnSubNorm{"blk.{}.ffn_sub_norm.weight", "model.layers.{}.mlp.ffn_sub_norm.weight"};
inline constexpr Name kDown{"blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight"};
inline constexpr Name kRopeFactors{"rope_freqs.weight", ""};
inline constexpr Name kShortRopeFactors{"rope_factors_short.weight", ""};
inline constexpr Name kLongRopeFactors{"rope_factors_long.weight", ""};
}  // namespace tensor_names

}  // namespace ridge
