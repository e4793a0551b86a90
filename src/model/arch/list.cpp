// The architectures Ridge runs: one row each. An architecture that fits Config needs nothing but its row.
#include <algorithm>
#include <cmath>

#include "model/arch/arch.h"

namespace ridge {

std::span<const Arch> arch_list() {
  static constexpr Arch kArchs[] = {
      {.name = "llama", .hf_type = "llama", .hf_class = "LlamaForCausalLM", .gguf_pairs = RopePairs::interleaved},
      // Mixtral, which GGUF files call a llama with experts.
      {.name = "llama",
       .hf_type = "mixtral",
       .hf_class = "MixtralForCausalLM",
       .gguf_pairs = RopePairs::interleaved,
       .windowed = true,
       .block_sparse = true,
       .experts = true,
       .experts_renormalised = true},
      // A llama with a sliding window in all layers, or with none.
      {.name = "mistral",
       .hf_type = "mistral",
       .hf_class = "MistralForCausalLM",
       .hf_outer = "mistral3",
       .hf_defaults = R"({"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096,
                          "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
                          "num_hidden_layers": 32, "num_attention_heads": 32})",
       .same_as = "llama",
       .gguf_pairs = RopePairs::interleaved,
       .windowed = true},
      {.name = "qwen2",
       .hf_type = "qwen2",
       .hf_class = "Qwen2ForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qkv_bias = true},
      {.name = "qwen3",
       .hf_type = "qwen3",
       .hf_class = "Qwen3ForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true},
      // The text of models that read images.
      {.name = "qwen2vl",
       .hf_type = "qwen2_5_vl_text",
       .hf_class = "Qwen2_5_VLForConditionalGeneration",
       .hf_outer = "qwen2_5_vl",
       .gguf_pairs = RopePairs::halves,
       .qkv_bias = true},
      {.name = "qwen3vl",
       .hf_type = "qwen3_vl_text",
       .hf_class = "Qwen3VLForConditionalGeneration",
       .hf_outer = "qwen3_vl",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true},
      {.name = "seed_oss",
       .hf_type = "seed_oss",
       .hf_class = "SeedOssForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qkv_bias = true,
       .ffn_norm_is_post_attention = true},
      {.name = "hunyuan-dense",
       .hf_type = "hunyuan_v1_dense",
       .hf_class = "HunYuanDenseV1ForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .qk_norm_after_rope = true},
      {.name = "smollm3",
       .hf_type = "smollm3",
       .hf_class = "SmolLM3ForCausalLM",
       .hf_defaults = R"({"tie_word_embeddings": true, "rope_theta": 2000000.0})",
       .gguf_pairs = RopePairs::interleaved,
       .nope_period = 4},
      {.name = "exaone4",
       .hf_type = "exaone4",
       .hf_class = "Exaone4ForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .windowed = true,
       .norms = NormPlace::after,
       .full_without_rope = true},
      {.name = "cohere2",
       .hf_type = "cohere2",
       .hf_class = "Cohere2ForCausalLM",
       .hf_defaults = R"({"tie_word_embeddings": true, "layer_norm_eps": 1e-5, "logit_scale": 0.0625})",
       .gguf_pairs = RopePairs::interleaved,
       .hf_pairs = RopePairs::interleaved,
       .windowed = true,
       .norms = NormPlace::parallel,
       .layer_norm = true,
       .logit_multiplier = true,
       .window_period = 4,
       .full_without_rope = true},
      // A llama whose queries grow with the position beyond the length that it was trained at.
      {.name = "mistral3",
       .hf_type = "ministral3",
       .hf_class = "Ministral3ForCausalLM",
       .hf_outer = "mistral3",
       .gguf_pairs = RopePairs::interleaved,
       .windowed = true,
       .position_scale = true},
      {.name = "qwen2moe",
       .hf_type = "qwen2_moe",
       .hf_class = "Qwen2MoeForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qkv_bias = true,
       .shared_gate = true,
       .experts = true},
      {.name = "qwen3moe",
       .hf_type = "qwen3_moe",
       .hf_class = "Qwen3MoeForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .experts = true,
       .experts_renormalised = true},
      {.name = "qwen3next",
       .hf_type = "qwen3_next",
       .hf_class = "Qwen3NextForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .norms_plus_one = true,
       .ffn_norm_is_post_attention = true,
       .shared_gate = true,
       .experts = true,
       .experts_renormalised = true,
       .delta = true,
       .delta_by_key_head = true},
      {.name = "qwen35",
       .hf_type = "qwen3_5_text",
       .hf_class = "Qwen3_5ForCausalLM",
       .hf_outer = "qwen3_5",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .norms_plus_one = true,
       .ffn_norm_is_post_attention = true,
       .delta = true,
       .delta_keys_cycle = true},
      {.name = "qwen35moe",
       .hf_type = "qwen3_5_moe_text",
       .hf_class = "Qwen3_5MoeForCausalLM",
       .hf_outer = "qwen3_5_moe",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .norms_plus_one = true,
       .ffn_norm_is_post_attention = true,
       .shared_gate = true,
       .experts = true,
       .experts_renormalised = true,
       .delta = true,
       .delta_keys_cycle = true,
       .experts_stacked = true},
      {.name = "gpt-oss",
       .hf_type = "gpt_oss",
       .hf_class = "GptOssForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qkv_bias = true,
       .activation = Activation::clamped_swiglu,
       .windowed = true,
       .ffn_norm_is_post_attention = true,
       .gpt_oss = true,
       .experts = true,
       .experts_renormalised = true,
       .window_period = 2},
      {.name = "deepseek2",
       .hf_type = "deepseek_v3",
       .hf_class = "DeepseekV3ForCausalLM",
       .gguf_pairs = RopePairs::interleaved,
       .hf_pairs = RopePairs::interleaved,
       .latent = true,
       .grouped_experts = true,
       .sigmoid_router = true,
       .choice_bias = true,
       .experts = true,
       .experts_renormalised = true},
      {.name = "deepseek32",
       .hf_type = "deepseek_v32",
       .hf_class = "DeepseekV32ForCausalLM",
       .gguf_pairs = RopePairs::interleaved,
       .hf_pairs = RopePairs::interleaved,
       .latent = true,
       .indexed = true,
       .index_pairs = RopePairs::halves,
       .grouped_experts = true,
       .sigmoid_router = true,
       .choice_bias = true,
       .experts = true,
       .experts_renormalised = true},
      {.name = "glm-dsa",
       .hf_type = "glm_moe_dsa",
       .hf_class = "GlmMoeDsaForCausalLM",
       .gguf_pairs = RopePairs::interleaved,
       .hf_pairs = RopePairs::interleaved,
       .latent = true,
       .indexed = true,
       .grouped_experts = true,
       .sigmoid_router = true,
       .choice_bias = true,
       .experts = true,
       .experts_renormalised = true},
      {.name = "glm4_moe_lite",
       .hf_type = "glm4_moe_lite",
       .hf_class = "Glm4MoeLiteForCausalLM",
       .same_as = "deepseek2",
       .gguf_pairs = RopePairs::interleaved,
       .hf_pairs = RopePairs::interleaved,
       .latent = true,
       .grouped_experts = true,
       .sigmoid_router = true,
       .choice_bias = true,
       .experts = true,
       .experts_renormalised = true},
      // deepseek2 with a softmax in the router.
      {.name = "deepseek_v2",
       .hf_type = "deepseek_v2",
       .hf_class = "DeepseekV2ForCausalLM",
       .same_as = "deepseek2",
       .gguf_pairs = RopePairs::interleaved,
       .hf_pairs = RopePairs::interleaved,
       .latent = true,
       .grouped_experts = true,
       .experts = true},
      {.name = "mistral4",
       .hf_type = "mistral4",
       .hf_class = "Mistral4ForCausalLM",
       .hf_outer = "mistral3",
       .gguf_pairs = RopePairs::interleaved,
       .hf_pairs = RopePairs::interleaved,
       .latent = true,
       .grouped_experts = true,
       .experts = true,
       .experts_renormalised = true,
       .position_scale = true,
       .experts_stacked = true},
      {.name = "glm4moe",
       .hf_type = "glm4_moe",
       .hf_class = "Glm4MoeForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qkv_bias = true,
       .qk_norm = true,
       .qk_norm_varies = true,
       .ffn_norm_is_post_attention = true,
       .grouped_experts = true,
       .sigmoid_router = true,
       .choice_bias = true,
       .experts = true,
       .experts_renormalised = true},
      {.name = "ernie4_5-moe",
       .hf_type = "ernie4_5_moe",
       .hf_class = "Ernie4_5_MoeForCausalLM",
       .hf_defaults = R"({"tie_word_embeddings": true, "rope_theta": 500000.0, "rms_norm_eps": 1e-5})",
       .gguf_pairs = RopePairs::interleaved,
       .hf_pairs = RopePairs::interleaved,
       .grouped_experts = true,
       .experts_as_moe = true,
       .choice_bias = true,
       .experts = true,
       .experts_renormalised = true},
      {.name = "minimax-m2",
       .hf_type = "minimax_m2",
       .hf_class = "MiniMaxM2ForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .qk_norm_whole = true,
       .block_sparse = true,
       .sigmoid_router = true,
       .choice_bias = true,
       .experts = true,
       .experts_renormalised = true},
      {.name = "lfm2",
       .hf_type = "lfm2",
       .hf_class = "Lfm2ForCausalLM",
       .hf_defaults = R"({"tie_word_embeddings": true, "norm_eps": 1e-5, "rope_theta": 1000000.0})",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .short_conv = true},
      {.name = "lfm2moe",
       .hf_type = "lfm2_moe",
       .hf_class = "Lfm2MoeForCausalLM",
       .hf_defaults = R"({"tie_word_embeddings": true, "norm_eps": 1e-5, "rope_theta": 1000000.0})",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .sigmoid_router = true,
       .choice_bias = true,
       .experts = true,
       .experts_renormalised = true,
       .short_conv = true},
      {.name = "granite",
       .hf_type = "granite",
       .hf_class = "GraniteForCausalLM",
       .gguf_pairs = RopePairs::interleaved,
       .multipliers = true},
      // Granite 4, with a dense feed-forward and with experts.
      {.name = "granitehybrid",
       .hf_type = "granitemoehybrid",
       .hf_class = "GraniteMoeHybridForCausalLM",
       .hf_defaults = R"({"tie_word_embeddings": true})",
       .gguf_pairs = RopePairs::interleaved,
       .multipliers = true,
       .mamba = true},
      {.name = "granitehybrid",
       .hf_type = "granitemoehybrid",
       .hf_class = "GraniteMoeHybridForCausalLM",
       .hf_defaults = R"({"tie_word_embeddings": true})",
       .gguf_pairs = RopePairs::interleaved,
       .multipliers = true,
       .experts = true,
       .experts_renormalised = true,
       .mamba = true},
      // Nemotron-H: every layer is Mamba2, attention or a feed-forward; dense, and with experts.
      {.name = "nemotron_h",
       .hf_type = "nemotron_h",
       .hf_class = "NemotronHForCausalLM",
       .gguf_pairs = RopePairs::interleaved,
       .activation = Activation::relu2,
       .mamba = true,
       .one_block = true},
      {.name = "nemotron_h_moe",
       .hf_type = "nemotron_h",
       .hf_class = "NemotronHForCausalLM",
       .gguf_pairs = RopePairs::interleaved,
       .activation = Activation::relu2,
       .grouped_experts = true,
       .sigmoid_router = true,
       .choice_bias = true,
       .experts = true,
       .experts_renormalised = true,
       .mamba = true,
       .one_block = true},
      {.name = "phi3",
       .hf_type = "phi3",
       .hf_class = "Phi3ForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .windowed = true,
       .fused = true},
      {.name = "olmo2",
       .hf_type = "olmo2",
       .hf_class = "Olmo2ForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .norms = NormPlace::after,
       .qk_norm_whole = true},
      {.name = "gemma3",
       .hf_type = "gemma3_text",
       .hf_class = "Gemma3ForCausalLM",
       .hf_outer = "gemma3",
       .hf_defaults = R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
                          "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
                          "head_dim": 256, "max_position_embeddings": 131072, "rope_theta": 1000000.0,
                          "query_pre_attn_scalar": 256, "sliding_window": 4096, "tie_word_embeddings": true})",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .activation = Activation::gelu_tanh,
       .windowed = true,
       .norms = NormPlace::both,
       .norms_plus_one = true,
       .embedding_root = true,
       .window_period = 6,
       .window_rope_theta = 10000},
      {.name = "gemma4",
       .hf_type = "gemma4_text",
       .hf_class = "Gemma4ForCausalLM",
       .hf_outer = "gemma4",
       .hf_defaults = R"({"tie_word_embeddings": true})",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .activation = Activation::gelu_tanh,
       .windowed = true,
       .norms = NormPlace::both,
       .embedding_root = true,
       .gemma4 = true},
      // Variant of gemma4 with experts beside the dense feed-forward.
      {.name = "gemma4",
       .hf_type = "gemma4_text",
       .hf_class = "Gemma4ForCausalLM",
       .hf_defaults = R"({"tie_word_embeddings": true})",
       .gguf_pairs = RopePairs::halves,
       .qk_norm = true,
       .activation = Activation::gelu_tanh,
       .windowed = true,
       .norms = NormPlace::both,
       .embedding_root = true,
       .gemma4 = true,
       .experts = true,
       .experts_renormalised = true},
      // BitNet b1.58 under its three names. 2B-4T and its kin square a ReLU; "bitnet" alone is also the older models
      // with SiLU, which llama.cpp assumes where the file names no activation. Hugging Face directories are written
      // under the name that every reader takes for the squared ReLU, or refuses.
      {.name = "bitnet-b1.58",
       .hf_type = "bitnet",
       .hf_class = "BitNetForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .activation = Activation::relu2,
       .bitnet = true},
      {.name = "bitnet-25", .gguf_pairs = RopePairs::halves, .activation = Activation::relu2, .bitnet = true},
      {.name = "bitnet", .gguf_pairs = RopePairs::halves, .bitnet = true},
  };
  return kArchs;
}

void use_arch(const Arch& arch, Config& c) {
  c.arch = arch.same_as.empty() ? arch.name : arch.same_as;
  c.activation = arch.activation;
  c.norms = arch.norms;
  c.qk_norm = arch.qk_norm;
  c.qk_norm_whole = arch.qk_norm_whole;
  c.qk_norm_after_rope = arch.qk_norm_after_rope;
  c.layer_norm = arch.layer_norm;
  c.sub_norm = c.ternary = arch.bitnet;
  c.sigmoid_router = arch.sigmoid_router;
  c.choice_bias = arch.choice_bias;
  c.shared_gate = arch.shared_gate;
  c.o_bias = c.sink_logits = c.expert_biases = arch.gpt_oss;
  c.attention_gate = arch.delta;
  c.ungated = arch.one_block;
  c.v_norm = c.layer_scale = arch.gemma4;
  if (arch.gemma4) c.attention_scale = 1;
  c.dense_beside = arch.gemma4 && arch.experts;
  if (arch.embedding_root) c.embedding_scale = std::sqrt(float(c.d_model));
  if (arch.full_without_rope && c.window > 0) c.nope_period = c.window_period;
}

const Arch* find_arch(std::string_view gguf_name, bool experts) {
  const Arch* found = nullptr;
  for (const Arch& arch : arch_list())
    if (arch.name == gguf_name && (!found || arch.experts == experts)) found = &arch;
  return found;
}

const Arch& arch_of(const Config& config) {
  const Arch* const arch = find_arch(config.arch, config.n_experts > 0);
  if (!arch) throw_error(ErrorKind::usage, "architecture '{}' is not one of the list", config.arch);
  return *arch;
}

constexpr std::string_view kModel = "model.", kOutput = "lm_head.weight", kInside = "model.language_model.",
                           kOutside = "language_model.", kBackbone = "backbone.";

Nesting find_nesting(std::span<const io::Tensor> tensors) {
  for (const io::Tensor& tensor : tensors) {
    if (tensor.name.starts_with(kInside)) return Nesting::inside;
    if (tensor.name.starts_with(kOutside)) return Nesting::outside;
    if (tensor.name.starts_with(kBackbone)) return Nesting::backbone;
  }
  return Nesting::none;
}

std::string nested_name(Nesting nesting, std::string_view name) {
  if (nesting == Nesting::outside) return std::string(kOutside).append(name);
  if (nesting == Nesting::none || !name.starts_with(kModel)) return std::string(name);
  return std::string(nesting == Nesting::backbone ? kBackbone : kInside).append(name.substr(kModel.size()));
}

bool is_of_text(Nesting nesting, std::string_view name) {
  return nesting == Nesting::none || nesting == Nesting::backbone || name == kOutput ||
         name.starts_with(nesting == Nesting::inside ? kInside : kOutside);
}

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::silu: return "silu";
    case Activation::relu2: return "relu2";
    case Activation::gelu_tanh: return "gelu_pytorch_tanh";
    case Activation::clamped_swiglu: return "clamped_swiglu";
  }
  return {};
}

Result<Activation> find_activation(std::string_view name) {
  for (const Activation activation : {Activation::silu, Activation::relu2, Activation::gelu_tanh})
    if (activation_name(activation) == name) return activation;
  return bad_file("'{}' is not supported (there are: silu, relu2, gelu_pytorch_tanh)", name);
}

}  // namespace ridge
