// The architectures Ridge runs: one row each. An architecture that fits Config needs nothing but its row.
#include <algorithm>
#include <cmath>

#include "model/arch/arch.h"

namespace ridge {

std::span<const Arch> arch_list() {
  static constexpr Arch kArchs[] = {
      {.name = "llama", .hf_type = "llama", .hf_class = "LlamaForCausalLM", .gguf_pairs = RopePairs::interleaved},
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
      {.name = "qwen2moe",
       .hf_type = "qwen2_moe",
       .hf_class = "Qwen2MoeForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qkv_bias = true,
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
       .latent = true,
       .sigmoid_router = true,
       .experts = true,
       .experts_renormalised = true},
      // deepseek2 with a softmax in the router.
      {.name = "deepseek_v2",
       .hf_type = "deepseek_v2",
       .hf_class = "DeepseekV2ForCausalLM",
       .same_as = "deepseek2",
       .gguf_pairs = RopePairs::interleaved,
       .latent = true,
       .experts = true},
      {.name = "granite",
       .hf_type = "granite",
       .hf_class = "GraniteForCausalLM",
       .gguf_pairs = RopePairs::interleaved,
       .multipliers = true},
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
  c.sub_norm = c.ternary = arch.bitnet;
  c.sigmoid_router = arch.sigmoid_router;
  c.o_bias = c.sink_logits = c.expert_biases = arch.gpt_oss;
  c.attention_gate = arch.delta;
  if (arch.embedding_root) c.embedding_scale = std::sqrt(float(c.d_model));
}

const Arch& arch_of(const Config& config) {
  for (const Arch& arch : arch_list())
    if (arch.name == config.arch) return arch;
  throw_error(ErrorKind::usage, "architecture '{}' is not one of the list", config.arch);
}

constexpr std::string_view kModel = "model.", kOutput = "lm_head.weight", kInside = "model.language_model.",
                           kOutside = "language_model.";

Nesting find_nesting(std::span<const io::Tensor> tensors) {
  for (const io::Tensor& tensor : tensors) {
    if (tensor.name.starts_with(kInside)) return Nesting::inside;
    if (tensor.name.starts_with(kOutside)) return Nesting::outside;
  }
  return Nesting::none;
}

std::string nested_name(Nesting nesting, std::string_view name) {
  if (nesting == Nesting::outside) return std::string(kOutside).append(name);
  if (nesting == Nesting::none || !name.starts_with(kModel)) return std::string(name);
  return std::string(kInside).append(name.substr(kModel.size()));
}

bool is_of_text(Nesting nesting, std::string_view name) {
  return nesting == Nesting::none || name == kOutput ||
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
