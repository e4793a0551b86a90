#include "op/sample/rule.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ridge {
namespace {

TEST(SampleRule, WeightsAreTheExponentialWithinTheirBound) {
  for (const float temperature : {0.1f, 0.8f, 1.0f, 2.5f, 1e4f}) {
    const float exponent = sample_rule({.temperature = temperature}).exponent;
    EXPECT_EQ(sample_weight(0, exponent), uint64_t(1) << 41);
    uint64_t last = uint64_t(1) << 41;
    for (float below = 0; below < 45 * temperature; below += 0.0137f * temperature) {
      const double exact = 0x1p41 * std::exp(-double(below) / double(temperature));
      const uint64_t weight = sample_weight(below, exponent);
      EXPECT_NEAR(double(weight), exact, 0x1p-17 * exact + 1) << below << " at temperature " << temperature;
      EXPECT_LE(weight, last);
      last = weight;
    }
    EXPECT_EQ(sample_weight(29.2f * temperature, exponent), 0u);
    EXPECT_EQ(sample_weight(INFINITY, exponent), 0u);
  }
}

TEST(SampleRule, TheColdestSamplingHasWeightAtTheBestOnly) {
  for (const float temperature : {1e-6f, 1e-30f, 1e-45f}) {
    const float exponent = sample_rule({.temperature = temperature}).exponent;
    EXPECT_LT(exponent, 0);
    EXPECT_EQ(sample_weight(0, exponent), uint64_t(1) << 41);
    EXPECT_EQ(sample_weight(0.01f, exponent), 0u);
  }
  EXPECT_EQ(sample_rule({.temperature = 0}).exponent, 0);
}

TEST(SampleRule, WhatIsOffIsOff) {
  EXPECT_FALSE(has_filter(sample_rule({.top_k = 0, .top_p = 1, .min_p = 0})));
  EXPECT_TRUE(has_filter(sample_rule({.top_k = 1, .top_p = 1, .min_p = 0})));
  EXPECT_TRUE(has_filter(sample_rule({.top_k = 0, .top_p = std::nextafter(1.0f, 0.0f), .min_p = 0})));
  EXPECT_TRUE(has_filter(sample_rule({.top_k = 0, .top_p = 1, .min_p = 1e-30f})));
  EXPECT_EQ(sample_rule({.repeat_last_n = 64}).repeat_last_n, 0u);
  EXPECT_EQ(sample_rule({.repeat_penalty = 1.5f, .repeat_last_n = 64}).repeat_last_n, 64u);
}

TEST(SampleRule, KeysOrderLogitsThenIdsAndGiveBothBack) {
  const float logits[] = {INFINITY, 3e38f, 2, 1, 1e-40f, 0, -1e-40f, -1, -3e38f, -INFINITY};
  uint64_t last = UINT64_MAX;
  for (const float logit : logits)
    for (const uint32_t id : {0u, 1u, 151935u}) {
      const uint64_t key = sample_key(logit, id);
      EXPECT_LT(key, last);
      EXPECT_EQ(key_logit(key), logit);
      EXPECT_EQ(key_id(key), id);
      last = key;
    }
  EXPECT_GT(last, 0u);
  EXPECT_EQ(sample_key(-0.0f, 7), sample_key(0.0f, 7));
  EXPECT_EQ(sample_key(NAN, 7), sample_key(INFINITY, 7)) << "it must come out as the best";
  EXPECT_EQ(sample_key(-NAN, 7), sample_key(INFINITY, 7));
}

TEST(SampleRule, NumbersAreThoseOfRngAndProductsAreExact) {
  Rng rng(77);
  for (uint64_t step = 0; step < 100; ++step) {
    const uint64_t number = rng.next();
    EXPECT_EQ(random_number(77, step), number);
    for (const uint64_t other : {uint64_t(0), uint64_t(1), uint64_t(1) << 41, number, ~number, UINT64_MAX}) {
      const auto product = static_cast<unsigned __int128>(number) * other;
      EXPECT_EQ(multiply_high(number, other), uint64_t(product >> 64));
    }
  }
}

TEST(SampleRule, TopPKeepsOneAtLeast) {
  EXPECT_EQ(top_p_target(sample_rule({.top_p = 0}), uint64_t(1) << 50), 1u);
  EXPECT_EQ(top_p_target(sample_rule({.top_p = 0.5f}), uint64_t(1) << 50), uint64_t(1) << 49);
}

}  // namespace
}  // namespace ridge
