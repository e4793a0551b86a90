// Batch invariance of whole models on the CPU: logits of every position are the same bits in steps of any size and with
// any number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "cases/paths.h"
#include "op/cpu.h"
#include "ridge/engine.h"

namespace ridge {
namespace {

/// Logits of every position, with prompts in steps of `step` tokens; step 0: token by token.
std::vector<float> all_logits(const Model& model, const std::string& cache, const std::vector<int32_t>& tokens,
                              int step) {
  Session session(model, {.n_ctx = 640, .n_ubatch = std::max(step, 1), .k = {.format = cache}, .v = {.format = cache}});
  std::vector<float> all;
  const int vocab = model.info().vocab_size;
  if (step > 0)
    session.prefill(
        tokens, [&](int, int n_rows, const float* logits) { all.insert(all.end(), logits, logits + n_rows * vocab); });
  else
    for (const int32_t token : tokens) {
      const std::span<const float> logits = session.decode(token);
      all.insert(all.end(), logits.begin(), logits.end());
    }
  return all;
}

/// Caches, by the head_dim that they need.
std::vector<std::string> caches_of(const Model& model) {
  std::vector<std::string> caches{"f32", "f16", "rotor-3"};
  if (model.info().head_dim % 32 == 0) caches.emplace_back("q8_0");
  return caches;
}

#ifdef NDEBUG
constexpr int kTokens = 520;
#else
constexpr int kTokens = 80;  // under sanitizers a token takes twenty times as long
#endif
/// Of them, in steps of one or two: past the window of rotor-3, whose rows are coded behind 96. Where a machine has
/// fewer processors than the model has threads, a step takes milliseconds.
constexpr size_t kFew = 170;

class Invariance : public testing::TestWithParam<const char*> {};
// Float weights, panels, super-blocks (rows of 256), and integers throughout.
INSTANTIATE_TEST_SUITE_P(
    Models, Invariance,
    testing::Values(RIDGE_SOURCE_DIR "/models/stories260K.gguf", RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf",
                    "synth:tiny@weights=f16", "synth:tiny-64@weights=bf16", "synth:tiny-64@weights=q4_k",
                    "synth:tiny-64@weights=q6_k", "synth:tiny-64@weights=q4_0", "synth:tiny-64@weights=int4_g128",
                    "synth:tiny-bitnet", "synth:tiny-gemma@weights=f16", "synth:tiny-experts@weights=f16",
                    "synth:tiny-oss@weights=q8_0", "synth:tiny-latent@weights=f16", "synth:tiny-index@weights=f16",
                    "synth:tiny-delta@weights=f16", "synth:tiny-gemma4@weights=f16",
                    "synth:tiny-gemma4-moe@weights=f16", "synth:tiny-gemma4-e@weights=f16",
                    "synth:tiny-nemotron@weights=f16", "synth:tiny-nemotron-moe@weights=f16"));

TEST_P(Invariance, StepsOfEverySizeGiveTheBitsOfSingleTokens) {
  // The larger model takes its time; its formats are those of the others.
  const bool is_large = std::string_view(GetParam()).find("ridge-ref") != std::string_view::npos;
  for (const Isa each : isas().subspan(1)) {
    const std::string isa(isa_name(each));
    const Model one = Model::load(GetParam(), {.n_threads = 1, .isa = isa});
    const Model three = Model::load(GetParam(), {.n_threads = 3, .isa = isa});
    std::vector<int32_t> tokens;
    for (int i = 0; i < (is_large ? std::min(70, kTokens) : kTokens); ++i)
      tokens.push_back((i * 7919 + 13) % one.info().vocab_size);
    for (const std::string& cache : is_large ? std::vector<std::string>{"rotor-3"} : caches_of(one)) {
      const std::vector<float> expected = all_logits(one, cache, tokens, 0);
      for (const int step : is_large ? std::vector{2, 16} : std::vector{1, 2, 16, 17, 150, 512}) {
        const size_t n = step > 2 ? tokens.size() : std::min(tokens.size(), kFew);
        const std::vector<float> actual =
            all_logits(three, cache, {tokens.begin(), tokens.begin() + ptrdiff_t(n)}, step);
        ASSERT_EQ(actual.size(), expected.size() / tokens.size() * n);
        EXPECT_EQ(std::memcmp(actual.data(), expected.data(), 4 * actual.size()), 0)
            << isa << ", cache " << cache << ", steps of " << step;
      }
    }
  }
}

}  // namespace
}  // namespace ridge
