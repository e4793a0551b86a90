// The architectures Ridge runs: one row each. An architecture that fits Config needs nothing but its row.
#include "model/arch/arch.h"

namespace ridge {

std::span<const Arch> arch_list() {
  static constexpr Arch kArchs[] = {
      {.name = "llama", .hf_type = "llama", .hf_class = "LlamaForCausalLM", .gguf_pairs = RopePairs::interleaved},
      // Mistral without a sliding window is a llama. With one it is refused.
      {.name = "mistral",
       .hf_type = "mistral",
       .hf_class = "MistralForCausalLM",
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

std::string_view activation_name(Activation activation) { return activation == Activation::relu2 ? "relu2" : "silu"; }

Result<Activation> find_activation(std::string_view name) {
  for (const Activation activation : {Activation::silu, Activation::relu2})
    if (activation_name(activation) == name) return activation;
  return bad_file("'{}' is not supported (there are: silu, relu2)", name);
}

}  // namespace ridge
