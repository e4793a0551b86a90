// Which tests a benchmark runs: llama-bench's lists, ranges and cross product.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kv_choice.h"

namespace ridge::lab {

/// A prompt and a generation timed together: "512,128".
struct PromptGen {
  int n_prompt = 0;
  int n_gen = 0;
};
Result<PromptGen> parse_prompt_gen(std::string_view text);

/// The cache that a decision record names for a model and a text of up to n tokens.
using KvByRecord = std::function<KvChoice(const Model& model, int n_tokens)>;

/// Tokens of the run before the timed ones: a device records its steps at the second one, which takes four GPUs 30 ms.
inline constexpr int kWarmUpTokens = 4;

struct BenchParams {
  std::vector<std::string> models;
  std::vector<int> n_prompt{512}, n_gen{128}, n_depth{0}, n_batch{2048}, n_ubatch{512};
  std::vector<int> n_threads{0}, n_cpu_moe{0};  ///< as LoadOptions has them, in place of `load`'s
  std::vector<PromptGen> prompt_gen;
  std::vector<KvChoice> kv{KvChoice{}};
  KvByRecord by_record;  ///< set: one more cache, behind the others, that every test asks for when its model is loaded
  int repeats = 5;
  bool warm_up = true;
  bool real_prefill = false;  ///< reach the depth by running a prompt instead of random rows
  bool check = true;
  std::optional<double> check_bound;  ///< on the NMSE; unset: as derived for each block
  float temperature = 0;              ///< above 0: steps sample their tokens, with the sampler's other defaults
  uint64_t seed = 42;
  LoadOptions load;
};

/// Throws usage for a synth: model with shared=1 on the CPU, which would read shared layers from its caches.
void check_layers_are_distinct(const std::string& model, std::string_view device);

/// One line of the table.
struct BenchTest {
  int n_batch = 0, n_ubatch = 0;
  KvChoice kv;
  int n_depth = 0, n_prompt = 0, n_gen = 0;
  bool by_record = false;  ///< `kv` is what the record says, once the model is loaded

  /// pp512, tg128, pp512+tg128, each with " @ d4096" at a depth.
  std::string name() const;
  /// The cache in front.
  std::string text() const { return kv_text(kv) + " " + name(); }
  int n_ctx() const { return n_depth + n_prompt + n_gen; }
};

/// The tests of one model at one thread count, in the order they run. Prompts and generations of 0 are left out.
std::vector<BenchTest> bench_tests(const BenchParams& params);

}  // namespace ridge::lab
