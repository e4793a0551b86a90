// RoPE angles of every scaling rule, and every bound a configuration from a file must keep.
//
// The expected frequencies were computed apart from this code, in Python, from the definitions that Hugging Face models
// ship with (inv_freq of "linear", "yarn" and "llama3"); nine digits, so 1e-6 is float's rounding and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "model/config.h"

namespace ridge {
namespace {

using Kind = RopeScaling::Kind;

Config with_rope(float theta, int rope_dim, RopeScaling scaling) {
  Config config;
  config.rope_theta = theta;
  config.head_dim = config.rope_dim = rope_dim;
  config.rope_scaling = scaling;
  return config;
}

void expect_frequencies(const Rope& rope, size_t n_pairs, const std::vector<std::pair<size_t, double>>& expected) {
  ASSERT_EQ(rope.frequency.size(), n_pairs);
  for (const auto& [pair, frequency] : expected)
    EXPECT_NEAR(rope.frequency[pair] / frequency, 1, 1e-6) << "pair " << pair << ": " << rope.frequency[pair];
}

TEST(MakeRope, Unscaled) {
  const Rope rope = make_rope(with_rope(10000, 64, {}), nullptr);
  expect_frequencies(rope, 32, {{0, 1}, {1, 7.498942093e-1}, {2, 5.623413252e-1}, {16, 1e-2}, {31, 1.333521432e-4}});
  EXPECT_EQ(rope.magnitude, 1);
  EXPECT_EQ(rope.pairs, RopePairs::halves);
}

TEST(MakeRope, CoversTheRotatedPartOnlyAndKeepsThePairing) {
  Config config = with_rope(10000, 64, {});
  config.head_dim = 128;
  config.rope_pairs = RopePairs::interleaved;
  const Rope rope = make_rope(config, nullptr);
  EXPECT_EQ(rope.frequency.size(), 32u);
  EXPECT_EQ(rope.pairs, RopePairs::interleaved);
}

TEST(MakeRope, LinearDividesEveryFrequency) {
  const Rope rope = make_rope(with_rope(10000, 64, {.kind = Kind::linear, .factor = 4}), nullptr);
  expect_frequencies(rope, 32, {{0, 0.25}, {16, 2.5e-3}, {31, 1.333521432e-4 / 4}});
  EXPECT_EQ(rope.magnitude, 1);
}

TEST(MakeRope, Llama3OfLlama31) {
  const Rope rope = make_rope(
      with_rope(
          500000, 128,
          {.kind = Kind::llama3, .factor = 8, .original_context = 8192, .low_freq_factor = 1, .high_freq_factor = 4}),
      nullptr);
  // Pairs up to 28 are kept, 29 to 34 blended, from 35 on divided by 8.
  expect_frequencies(rope, 64,
                     {{0, 1},
                      {1, 8.146172339e-1},
                      {20, 1.656044008e-2},
                      {28, 3.211445995e-3},
                      {29, 2.166570764e-3},
                      {30, 1.371893568e-3},
                      {31, 8.567514129e-4},
                      {32, 5.248461610e-4},
                      {33, 3.126937504e-4},
                      {34, 1.785078128e-4},
                      {35, 9.556212354e-5},
                      {40, 3.428102196e-5},
                      {63, 3.068925989e-7}});
  EXPECT_EQ(rope.magnitude, 1);
}

TEST(MakeRope, YarnOfQwen25) {
  const Rope rope =
      make_rope(with_rope(1e6f, 128, {.kind = Kind::yarn, .factor = 4, .original_context = 32768}), nullptr);
  // The ramp runs from pair 23 to pair 40.
  expect_frequencies(rope, 64,
                     {{0, 1},
                      {1, 8.058421878e-1},
                      {20, 1.333521432e-2},
                      {23, 6.978305849e-3},
                      {24, 5.375321491e-3},
                      {25, 4.131738023e-3},
                      {30, 1.064360981e-3},
                      {36, 1.798411559e-4},
                      {39, 6.490394321e-5},
                      {40, 4.445698525e-5},
                      {41, 3.582531426e-5},
                      {63, 3.102344402e-7}});
  EXPECT_NEAR(rope.magnitude, 1.138629436, 1e-6);
}

TEST(MakeRope, YarnOfAnotherShapeAndAGivenAttentionFactor) {
  const RopeScaling scaling{.kind = Kind::yarn, .factor = 16, .original_context = 4096};
  const Rope rope = make_rope(with_rope(10000, 64, scaling), nullptr);
  expect_frequencies(rope, 32,
                     {{0, 1},
                      {5, 2.371373706e-1},
                      {10, 5.623413252e-2},
                      {15, 8.526843773e-3},
                      {20, 8.817889629e-4},
                      {25, 4.686838808e-5},
                      {31, 8.334508951e-6}});
  EXPECT_NEAR(rope.magnitude, 1.277258872, 1e-6);
  RopeScaling given = scaling;
  given.attention_factor = 1.5f;
  EXPECT_EQ(make_rope(with_rope(10000, 64, given), nullptr).magnitude, 1.5f);
}

TEST(MakeRope, FactorsDivideFrequencies) {
  std::vector<float> factors(32, 1.0f);
  factors[3] = 8;
  const Config config = with_rope(10000, 64, {});
  const Rope plain = make_rope(config, nullptr), divided = make_rope(config, factors.data());
  for (size_t i = 0; i < 32; ++i) EXPECT_FLOAT_EQ(divided.frequency[i], plain.frequency[i] / factors[i]);
}

Config valid_config() {
  Config c;
  c.n_layers = 2, c.n_heads = 8, c.n_kv_heads = 2, c.head_dim = 64, c.d_model = 512, c.d_ff = 1024, c.vocab_size = 1000;
  c.n_ctx_train = 4096, c.rope_dim = 64;
  return c;
}

TEST(CheckConfig, AcceptsAModelAndTheEdgesOfEveryBound) {
  EXPECT_TRUE(check_config(valid_config(), "f"));
  for (const auto& change : std::vector<std::function<void(Config&)>>{
           [](Config& c) { c.n_layers = 1; }, [](Config& c) { c.n_layers = 1024; },
           [](Config& c) { c.n_heads = c.n_kv_heads = 1024; }, [](Config& c) { c.n_heads = c.n_kv_heads = 1; },
           [](Config& c) { c.head_dim = 1024; }, [](Config& c) { c.head_dim = c.rope_dim = 2; },
           [](Config& c) { c.rope_dim = 2; }, [](Config& c) { c.d_model = 1 << 17; }, [](Config& c) { c.d_model = 1; },
           [](Config& c) { c.d_ff = 1 << 20; }, [](Config& c) { c.vocab_size = 1 << 22; },
           [](Config& c) { c.n_ctx_train = 1 << 26; },
           [](Config& c) { c.rope_scaling = {.kind = Kind::linear, .factor = 65536}; },
           [](Config& c) { c.rope_scaling = {.kind = Kind::linear, .factor = 1}; },
           [](Config& c) { c.rope_scaling = {.kind = Kind::yarn, .factor = 4, .original_context = 32768}; },
           [](Config& c) { c.rope_scaling = {.kind = Kind::llama3, .factor = 8, .original_context = 8192}; }}) {
    Config c = valid_config();
    change(c);
    const Status status = check_config(c, "f");
    EXPECT_TRUE(status) << (status ? "" : status.error().message);
  }
}

struct Refusal {
  const char* message;  // what it must name
  std::function<void(Config&)> change;
};

TEST(CheckConfig, RefusesEveryValuePastItsBoundByName) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const std::vector<Refusal> refusals = {
      {"n_layers is 0", [](Config& c) { c.n_layers = 0; }},
      {"n_layers is 1025", [](Config& c) { c.n_layers = 1025; }},
      {"n_heads is -1", [](Config& c) { c.n_heads = -1; }},
      {"n_heads is 1025", [](Config& c) { c.n_heads = 1025; }},
      {"n_kv_heads is 0", [](Config& c) { c.n_kv_heads = 0; }},
      {"n_kv_heads is 9", [](Config& c) { c.n_kv_heads = 9; }},
      {"n_heads 8 is not a multiple of n_kv_heads 3", [](Config& c) { c.n_kv_heads = 3; }},
      {"head_dim is 1,", [](Config& c) { c.head_dim = 1; }},
      {"head_dim is 1026", [](Config& c) { c.head_dim = 1026; }},
      {"head_dim 65", [](Config& c) { c.head_dim = 65; }},
      {"rope dimension 63", [](Config& c) { c.rope_dim = 63; }},
      {"rope dimension is 0", [](Config& c) { c.rope_dim = 0; }},
      {"rope dimension is 66", [](Config& c) { c.rope_dim = 66; }},
      {"d_model is 0", [](Config& c) { c.d_model = 0; }},
      {"d_model is 131073", [](Config& c) { c.d_model = (1 << 17) + 1; }},
      {"d_ff is 0", [](Config& c) { c.d_ff = 0; }},
      {"d_ff is 1048577", [](Config& c) { c.d_ff = (1 << 20) + 1; }},
      {"vocab_size is 0", [](Config& c) { c.vocab_size = 0; }},
      {"vocab_size is 4194305", [](Config& c) { c.vocab_size = (1 << 22) + 1; }},
      {"context length is 0", [](Config& c) { c.n_ctx_train = 0; }},
      {"context length is", [](Config& c) { c.n_ctx_train = std::numeric_limits<int>::max(); }},
      {"epsilon is 0", [](Config& c) { c.rms_eps = 0; }},
      {"epsilon is 1", [](Config& c) { c.rms_eps = 1; }},
      {"epsilon is nan", [=](Config& c) { c.rms_eps = nan; }},
      {"frequency base is 1", [](Config& c) { c.rope_theta = 1; }},
      {"frequency base is inf", [=](Config& c) { c.rope_theta = infinity; }},
      {"frequency base is nan", [=](Config& c) { c.rope_theta = nan; }},
      {"frequency base is -", [](Config& c) { c.rope_theta = -10000; }},
      {"scaling factor is 0.5", [](Config& c) { c.rope_scaling = {.kind = Kind::linear, .factor = 0.5f}; }},
      {"scaling factor is 65537", [](Config& c) { c.rope_scaling = {.kind = Kind::linear, .factor = 65537}; }},
      {"scaling factor is nan",
       [=](Config& c) { c.rope_scaling = {.kind = Kind::yarn, .factor = nan, .original_context = 1}; }},
      {"original context is 0", [](Config& c) { c.rope_scaling = {.kind = Kind::yarn, .factor = 4}; }},
      {"original context is 0", [](Config& c) { c.rope_scaling = {.kind = Kind::llama3, .factor = 4}; }},
      {"frequency factors",
       [](Config& c) {
         c.rope_scaling = {.kind = Kind::llama3, .factor = 8, .original_context = 8192, .low_freq_factor = 4};
       }},
      {"frequency factors",
       [](Config& c) {
         c.rope_scaling = {.kind = Kind::llama3, .factor = 8, .original_context = 8192, .low_freq_factor = 0};
       }},
      {"frequency factors",
       [=](Config& c) {
         c.rope_scaling = {.kind = Kind::llama3, .factor = 8, .original_context = 8192, .high_freq_factor = infinity};
       }},
      {"frequency factors",
       [=](Config& c) {
         c.rope_scaling = {.kind = Kind::llama3, .factor = 8, .original_context = 8192, .high_freq_factor = nan};
       }},
      {"beta",
       [](Config& c) { c.rope_scaling = {.kind = Kind::yarn, .factor = 4, .original_context = 4096, .beta_fast = 1}; }},
      {"beta",
       [](Config& c) { c.rope_scaling = {.kind = Kind::yarn, .factor = 4, .original_context = 4096, .beta_slow = 0}; }},
      {"beta",
       [=](Config& c) {
         c.rope_scaling = {.kind = Kind::yarn, .factor = 4, .original_context = 4096, .beta_fast = infinity};
       }},
      {"attention factor",
       [](Config& c) {
         c.rope_scaling = {.kind = Kind::yarn, .factor = 4, .original_context = 4096, .attention_factor = -1};
       }},
      {"attention factor",
       [=](Config& c) {
         c.rope_scaling = {.kind = Kind::yarn, .factor = 4, .original_context = 4096, .attention_factor = nan};
       }},
  };
  for (const Refusal& refusal : refusals) {
    Config c = valid_config();
    refusal.change(c);
    const Status status = check_config(c, "model.gguf");
    ASSERT_FALSE(status) << refusal.message;
    EXPECT_EQ(status.error().kind, ErrorKind::bad_file);
    EXPECT_THAT(status.error().message,
                testing::AllOf(testing::HasSubstr(refusal.message), testing::StartsWith("model.gguf")));
  }
}

}  // namespace
}  // namespace ridge
