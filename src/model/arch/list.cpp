// The architectures Ridge runs: one row each. An architecture that fits Config needs nothing but its row.
#include "model/arch/arch.h"

namespace ridge {

std::span<const Arch> arch_list() {
  static constexpr Arch kArchs[] = {
      {.name = "llama",
       .hf_type = "llama",
       .hf_class = "LlamaForCausalLM",
       .gguf_pairs = RopePairs::interleaved,
       .qkv_bias = false,
       .qk_norm = false},
      {.name = "qwen2",
       .hf_type = "qwen2",
       .hf_class = "Qwen2ForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qkv_bias = true,
       .qk_norm = false},
      {.name = "qwen3",
       .hf_type = "qwen3",
       .hf_class = "Qwen3ForCausalLM",
       .gguf_pairs = RopePairs::halves,
       .qkv_bias = false,
       .qk_norm = true},
  };
  return kArchs;
}

}  // namespace ridge
