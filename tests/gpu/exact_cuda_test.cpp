// Kernel rows=four (--exact): a token's logits have the same bits alone and among up to three others of its text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "gpu/device_data.h"
#include "gpu/model_data.h"

namespace ridge {
namespace {

class ExactCuda : public OnDevice {};

using LogitRow = std::vector<float>;

/// Logits behind each of the tokens, run one by one behind what the session holds.
std::vector<LogitRow> one_by_one(Session& session, std::span<const int32_t> tokens) {
  std::vector<LogitRow> rows;
  for (const int32_t token : tokens) {
    const auto row = session.decode(token);
    rows.emplace_back(row.begin(), row.end());
  }
  return rows;
}

/// The same in one pass.
std::vector<LogitRow> at_once(Session& session, std::span<const int32_t> tokens, int vocab_size) {
  std::vector<LogitRow> rows;
  session.prefill(tokens, [&](int, int n, const float* logits) {
    for (int i = 0; i < n; ++i)
      rows.emplace_back(logits + int64_t(i) * vocab_size, logits + int64_t(i + 1) * vocab_size);
  });
  return rows;
}

/// Rows that differ in some bit.
int n_different(const std::vector<LogitRow>& a, const std::vector<LogitRow>& b) {
  int n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += std::memcmp(a[i].data(), b[i].data(), 4 * a[i].size()) != 0;
  return n;
}

/// Behind n_filled random rows and a prompt.
struct Place {
  int n_filled = 0, n_prompt = 0;
};

void expect_same_bits(const Model& model, const char* kv, const Place& place, std::initializer_list<int> sizes) {
  constexpr size_t kSteps = 6;
  const int vocab_size = model.info().vocab_size;
  const SessionOptions options{.n_ctx = place.n_filled + place.n_prompt + 64, .k = {.format = kv}, .v = {.format = kv}};
  const auto tokens = tokens_of(place.n_prompt + int(kSteps), vocab_size, 1);
  const std::span<const int32_t> prompt = std::span(tokens).first(size_t(place.n_prompt)),
                                 text = std::span(tokens).last(kSteps);
  Session alone(model, options);
  if (place.n_filled > 0) alone.fill(place.n_filled, 1);
  alone.prefill(prompt);
  const auto expected = one_by_one(alone, text);
  for (const int n : sizes) {
    Session together(model, options);
    if (place.n_filled > 0) together.fill(place.n_filled, 1);
    together.prefill(prompt);
    std::vector<LogitRow> got;
    for (size_t at = 0; at < kSteps; at += size_t(n))
      std::ranges::move(at_once(together, text.subspan(at, std::min(size_t(n), kSteps - at)), vocab_size),
                        std::back_inserter(got));
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_EQ(n_different(got, expected), 0) << model.info().path << ", cache " << kv << ", " << n << " tokens a pass";
  }
}

Model load_exact(const std::string& spec) { return Model::load(spec, {.device = "cuda", .kernels = {"rows=four"}}); }

/// Behind 29 tokens six more cross the border of a tile, and behind 123 that of a rotor format's window too. Behind
/// 1467 attention has several parts, whose borders move where a tile begins.
TEST_F(ExactCuda, TokensHaveTheirBitsInPassesOfUpToFour) {
  const Model model = load_exact("synth:tiny-64@weights=int4_g128");
  expect_same_bits(model, "f16", {0, 29}, {2, 3, 4});
  for (const char* kv : {"rotor-3", "q8_0", "q4_0"}) expect_same_bits(model, kv, {0, 123}, {4});
  for (const char* kv : {"f16", "rotor-3"}) expect_same_bits(model, kv, {1458, 9}, {4});
}

TEST_F(ExactCuda, SoDoTokensWithEveryPackingOfWeights) {
  for (const char* weights : {"f16", "q8_0", "q4_k", "f32"})
    expect_same_bits(load_exact(std::string("synth:tiny-64@weights=") + weights), "f16", {0, 29}, {3});
}

/// States, experts, latent rows and windows.
TEST_F(ExactCuda, SoDoTokensOfEveryKindOfLayer) {
  for (const char* spec : {"synth:tiny-experts@weights=int4_g128", "synth:tiny-delta", "synth:tiny-nemotron-moe",
                           "synth:tiny-latent", "synth:tiny-oss", "synth:tiny-gemma4-moe"})
    expect_same_bits(load_exact(spec), "f16", {0, 29}, {4});
}

}  // namespace
}  // namespace ridge
