#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "engine/distribution.h"
#include "engine/finite.h"
#include "op/sample/rule.h"
#include "ridge/engine.h"

namespace ridge {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f};
// Everything off but sampling: probabilities are softmax(logits / temperature).
const SamplerOptions kPlain{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0};

std::map<int32_t, int> sample(SamplerOptions options, int n, const std::vector<float>& logits = kLogits) {
  Sampler sampler(options, int(logits.size()));
  std::map<int32_t, int> counts;
  for (int i = 0; i < n; ++i) ++counts[sampler.sample(logits)];
  return counts;
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargestLogits) {
  const auto counts = sample({.temperature = 0, .top_k = 1, .top_p = 0.1f, .min_p = 0.9f}, 20);
  EXPECT_EQ(counts, (std::map<int32_t, int>{{1, 20}}));
}

TEST(Sampler, LogitsThatAreNotFiniteAreAnError) {
  const SamplerOptions all[] = {{.temperature = 0},
                                kPlain,
                                {.temperature = 1, .top_k = 2},
                                {.temperature = 1, .top_k = 0, .top_p = 0.5f},
                                {.temperature = 0, .min_p = 0.1f, .repeat_penalty = 1.5f}};
  for (const SamplerOptions& options : all) {
    for (const auto& logits : {std::vector<float>{NAN, 1, 2, NAN},
                               {1, 2, -NAN},
                               {1, INFINITY, 2},
                               {NAN, INFINITY},
                               {NAN, NAN},
                               {-INFINITY, -INFINITY},
                               {-INFINITY, NAN, 1}}) {
      EXPECT_THROW(sample(options, 1, logits), NotFiniteError) << logits.size();
      EXPECT_THROW(distribution_of(options, logits, {}), NotFiniteError);
      EXPECT_THROW(check_logits(logits), NotFiniteError);
    }
    for (const auto& logits : {std::vector<float>{-INFINITY, 1, -INFINITY}, {-3e38f, 3e38f}, {-INFINITY, -3}}) {
      EXPECT_EQ(sample(options, 3, logits), (std::map<int32_t, int>{{1, 3}})) << "a token of -infinity never comes";
      check_logits(logits);
    }
  }
  EXPECT_EQ(checked_token(77), 77);
  EXPECT_THROW(checked_token(77 | kNotFiniteToken), NotFiniteError);
}

TEST(Sampler, SameSeedSameTokens) {
  SamplerOptions options = kPlain;
  options.seed = 42;
  Sampler a(options, 5), b(options, 5);
  options.seed = 43;
  Sampler c(options, 5);
  std::vector<int32_t> from_a, from_b, from_c;
  for (int i = 0; i < 64; ++i) {
    from_a.push_back(a.sample(kLogits));
    from_b.push_back(b.sample(kLogits));
    from_c.push_back(c.sample(kLogits));
  }
  EXPECT_EQ(from_a, from_b);
  EXPECT_NE(from_a, from_c);
}

TEST(Sampler, ANewSamplerGoesOnWithTheNextToken) {
  SamplerOptions options = kPlain;
  options.seed = 42;
  Sampler whole(options, 5);
  std::vector<int32_t> expected, tokens;
  for (int i = 0; i < 64; ++i) expected.push_back(whole.sample(kLogits));
  for (int i = 0; i < 64; ++i) {
    options.n_sampled = uint64_t(i);
    tokens.push_back(Sampler(options, 5).sample(kLogits));
  }
  EXPECT_EQ(tokens, expected);
}

TEST(Sampler, TokensFollowTheSoftmax) {
  constexpr int kSamples = 40000;
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    SamplerOptions options = kPlain;
    options.temperature = temperature;
    auto counts = sample(options, kSamples);
    double total = 0;
    for (const float logit : kLogits) total += std::exp(logit / temperature);
    for (size_t i = 0; i < kLogits.size(); ++i) {
      const double p = std::exp(kLogits[i] / temperature) / total;
      const double sigma = std::sqrt(p * (1 - p) * kSamples);
      EXPECT_NEAR(counts[int32_t(i)], p * kSamples, 5 * sigma + 1)
          << "token " << i << " at temperature " << temperature;
    }
  }
}

TEST(Sampler, TopKKeepsTheBest) {
  SamplerOptions options = kPlain;
  options.top_k = 2;
  for (const auto& [token, count] : sample(options, 1000)) EXPECT_TRUE(token == 1 || token == 3) << token;
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities: tokens 1 and 3 about 0.40 each, token 2 about 0.15, token 0 about 0.05.
  SamplerOptions options = kPlain;
  options.top_p = 0.79f;
  for (const auto& [token, count] : sample(options, 1000)) EXPECT_TRUE(token == 1 || token == 3) << token;
  options.top_p = 0.85f;
  EXPECT_TRUE(sample(options, 2000).contains(2));
  options.top_p = 0;
  EXPECT_EQ(sample(options, 100), (std::map<int32_t, int>{{1, 100}})) << "the best token always stays";
}

TEST(Sampler, MinPIsRelativeToTheBest) {
  SamplerOptions options = kPlain;
  options.min_p = 0.2f;  // e^-1 = 0.37 of the best stays, e^-2 = 0.14 goes
  const auto counts = sample(options, 5000);
  EXPECT_TRUE(counts.contains(2));
  EXPECT_FALSE(counts.contains(0));
}

TEST(Sampler, RepeatPenaltyPushesSeenTokensDownWhateverTheirSign) {
  SamplerOptions options{.temperature = 0, .repeat_penalty = 2};
  Sampler sampler(options, 3);
  sampler.accept(std::vector<int32_t>{0});
  EXPECT_EQ(sampler.sample(std::vector<float>{3.0f, 2.0f, 0.0f}), 1) << "3 / 2 < 2";
  Sampler negative(options, 3);
  negative.accept(std::vector<int32_t>{0});
  EXPECT_EQ(negative.sample(std::vector<float>{-1.0f, -1.5f, -9.0f}), 1) << "-1 * 2 < -1.5";
}

TEST(Sampler, RepeatPenaltyForgetsOldTokens) {
  Sampler sampler({.temperature = 0, .repeat_penalty = 2, .repeat_last_n = 2}, 4);
  sampler.accept(std::vector<int32_t>{0, 1, 2});
  EXPECT_EQ(sampler.sample(std::vector<float>{3.0f, 2.9f, 2.8f, 0.0f}), 0);
}

TEST(Sampler, OutOfRangeOptionsNameTheFlag) {
  const auto message = [](SamplerOptions options) -> std::string {
    try {
      Sampler sampler(options, 5);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({.temperature = NAN}).find("temperature is "), std::string::npos);
  EXPECT_NE(message({.temperature = -1}).find("temperature is "), std::string::npos);
  EXPECT_NE(message({.top_k = -1}).find("top_k is "), std::string::npos);
  EXPECT_NE(message({.top_p = 1.5f}).find("top_p is "), std::string::npos);
  EXPECT_NE(message({.min_p = NAN}).find("min_p is "), std::string::npos);
  EXPECT_NE(message({.repeat_penalty = 0}).find("repeat_penalty is "), std::string::npos);
}

}  // namespace
}  // namespace ridge
