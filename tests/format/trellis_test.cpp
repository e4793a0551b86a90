// The trellis code: its levels, the search against all paths of short rows, the factor of a metric, and rows of
// rotor-3t.
#include "format/trellis.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "format/kv_rotor3t.h"
#include "format/trellis_factor.h"

namespace ridge {
namespace {

std::vector<float> normal_values(Rng& rng, size_t n, float deviation) {
  std::vector<float> values(n);
  for (float& v : values) v = deviation * float(rng.normal());
  return values;
}

/// Symmetric and positive definite, far from the identity.
std::vector<float> random_metric(Rng& rng, size_t dim) {
  const std::vector<float> seen = normal_values(rng, dim * dim / 2, 1);
  std::vector<float> metric(dim * dim, 0.0f);
  for (size_t s = 0; s < dim / 2; ++s)
    for (size_t i = 0; i < dim; ++i)
      for (size_t j = 0; j < dim; ++j) metric[i * dim + j] += seen[s * dim + i] * seen[s * dim + j] / float(dim / 2);
  for (size_t i = 0; i < dim; ++i) metric[i * dim + i] += 0.05f;
  return metric;
}

/// Sum over k of D_k (W (u - l))_k^2 for a chain of codes.
double cost(const std::vector<float>& u, const float* factor, const uint8_t* codes) {
  const size_t dim = u.size();
  std::vector<float> levels(dim);
  trellis_levels(codes, int(dim), levels.data());
  double total = 0;
  for (size_t k = 0; k < dim; ++k) {
    double error = double(u[k]) - levels[k];
    for (size_t j = 0; factor && j < k; ++j) error += factor[j * dim + k] * (double(u[j]) - levels[j]);
    total += (factor ? factor[k * dim + k] : 1.0) * error * error;
  }
  return total;
}

/// The least cost of all paths.
double least_cost(const std::vector<float>& u, const float* factor) {
  std::vector<uint8_t> codes(u.size());
  double least = INFINITY;
  for (size_t path = 0; path < size_t(1) << (3 * u.size()); ++path) {
    for (size_t k = 0; k < u.size(); ++k) codes[k] = path >> (3 * k) & 7;
    least = std::min(least, cost(u, factor, codes.data()));
  }
  return least;
}

TEST(Trellis, LevelsAreTheSumOfTwoTablesThatTheCodeBeforeBothMirrors) {
  EXPECT_EQ(trellis_level(0, 0, 0), 83 - 4);
  EXPECT_EQ(trellis_level(2, 7, 3), -80 - 40);
  EXPECT_EQ(trellis_level(2, 7, 4), 9 - 4);
  EXPECT_EQ(trellis_level(5, 1, 7), 45 - 14);
  std::set<int> levels;
  for (int window = 0; window < 128; ++window) {
    EXPECT_EQ(trellis_level_at(window), trellis_level(window >> 4, window >> 1 & 7, (window & 1) * 7));
    levels.insert(trellis_level_at(window));
  }
  EXPECT_EQ(*levels.begin(), -120);  // a byte holds a level, and a level plus 128 without a sign
  EXPECT_EQ(*levels.rbegin(), 122);
}

TEST(Trellis, WaysAreAllStepsOfCodes) {
  std::set<std::pair<int, int>> ways;
  for (int state = 0; state < kTrellisStates; ++state)
    for (int way = 0; way < kTrellisWays; ++way) {
      const int from = trellis_from(state, way);
      EXPECT_EQ(state >> 3, (from & 7) >> 2);  // the bit that stays
      EXPECT_EQ(trellis_way_level(state, way), trellis_level(state & 7, from & 7, from >> 3 << 2));
      ways.insert({from, state});
    }
  EXPECT_EQ(ways.size(), size_t(kTrellisStates * kTrellisWays));
}

TEST(Trellis, ChainsGoThroughChannels32Apart) {
  EXPECT_EQ(trellis_channel(3, 128), 96);
  EXPECT_EQ(trellis_channel(4, 128), 1);
  for (const int dim : {32, 64, 96, 128, 256}) {
    std::set<int> channels;
    for (int k = 0; k < dim; ++k) channels.insert(trellis_channel(k, dim));
    EXPECT_EQ(channels.size(), size_t(dim));
    EXPECT_EQ(*channels.rbegin(), dim - 1);
  }
}

TEST(Trellis, SearchFindsTheBestOfAllPathsWhereErrorsDoNotMeet) {
  Rng rng(3);
  TrellisRow row;
  for (int trial = 0; trial < 12; ++trial) {
    const std::vector<float> u = normal_values(rng, 5, kTrellisDeviation);
    code_trellis(u.data(), nullptr, 5, row);
    EXPECT_NEAR(cost(u, nullptr, row.codes), least_cost(u, nullptr), 1e-3);
    std::vector<float> weights(25, 0.0f);
    for (size_t k = 0; k < 5; ++k) weights[6 * k] = float(0.1 + rng.uniform());
    code_trellis(u.data(), weights.data(), 5, row);
    EXPECT_NEAR(cost(u, weights.data(), row.codes), least_cost(u, weights.data()), 1e-3);
  }
}

TEST(Trellis, SearchIsNearTheBestOfAllPathsWhereErrorsMeet) {
  Rng rng(4);
  TrellisRow row;
  double found = 0, least = 0;
  for (int trial = 0; trial < 24; ++trial) {
    const std::vector<float> u = normal_values(rng, 5, kTrellisDeviation);
    std::vector<float> factor(25, 0.0f);
    for (size_t j = 0; j < 5; ++j)
      for (size_t k = j; k < 5; ++k) factor[j * 5 + k] = k == j ? 1.0f : 0.4f * float(rng.normal());
    code_trellis(u.data(), factor.data(), 5, row);
    found += cost(u, factor.data(), row.codes);
    least += least_cost(u, factor.data());
  }
  EXPECT_LE(found, 1.1 * least);
}

TEST(Trellis, FactorIsTheMetricInTheOrderOfTheChain) {
  constexpr size_t kDim = 64;
  Rng rng(5);
  const std::vector<float> metric = random_metric(rng, kDim);
  std::vector<float> factor = metric;
  factor_metric(kDim, factor.data());
  const auto w = [&](size_t k, size_t j) { return k == j ? 1.0 : k > j ? double(factor[j * kDim + k]) : 0.0; };
  for (size_t i = 0; i < kDim; ++i)
    for (size_t j = 0; j < kDim; ++j) {
      double sum = 0;
      for (size_t k = 0; k < kDim; ++k) sum += w(k, i) * factor[k * kDim + k] * w(k, j);
      const size_t from = size_t(trellis_channel(int(i), kDim)) * kDim + size_t(trellis_channel(int(j), kDim));
      ASSERT_NEAR(sum, metric[from], 1e-5);
      if (j < i) EXPECT_EQ(factor[i * kDim + j], 0);
    }
}

TEST(Trellis, WhatTheSearchLeavesAreProductsWithTheFactor) {
  constexpr size_t kDim = 32;
  Rng rng(6);
  std::vector<float> factor = random_metric(rng, kDim);
  factor_metric(kDim, factor.data());
  const std::vector<float> u = normal_values(rng, kDim, kTrellisDeviation);
  TrellisRow row;
  code_trellis(u.data(), factor.data(), kDim, row);
  double left = 0;
  for (size_t k = 0; k < kDim; ++k)
    left += factor[k * (kDim + 1)] * std::pow(double(row.of_values[k]) - row.of_levels[k], 2);
  EXPECT_NEAR(left, cost(u, factor.data(), row.codes), 1e-4 * left);
}

TEST(KvRotor3t, CodesOfAChainReadAsTheirLevels) {
  constexpr int kDim = 96;
  Rng rng(7);
  std::vector<uint8_t> codes(kDim);
  for (uint8_t& code : codes) code = uint8_t(rng.next() & 7);
  std::vector<std::byte> row(size_t(KvRotor3t::row_bytes(kDim)));
  for (int k = 0; k < kDim; ++k)
    for (int b = 0; b < 3; ++b) row[size_t(3 * k + b) / 8] |= std::byte((codes[size_t(k)] >> b & 1) << (3 * k + b) % 8);
  const uint16_t half = f32_to_f16(1.5f);
  std::memcpy(row.data() + KvRotor3t::code_bytes(kDim), &half, 2);
  std::vector<float> levels(kDim), out(kDim);
  trellis_levels(codes.data(), kDim, levels.data());
  KvRotor3t::decode(row.data(), kDim, {}, out.data());
  for (int k = 0; k < kDim; ++k) EXPECT_EQ(out[size_t(trellis_channel(k, kDim))], levels[size_t(k)] * 1.5f / 32);
}

TEST(KvRotor3t, ARowHasKnownBytes) {
  std::vector<float> x(32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(int(i * 37 % 64)) / 32 - 1;
  std::vector<std::byte> row(size_t(KvRotor3t::row_bytes(32)));
  EXPECT_EQ(KvRotor3t::encode(x.data(), 32, {.scale = KvScale::unbiased}, row.data()), 0);
  std::string hex;
  for (const std::byte byte : row) hex += fmt::format("{:02x}", int(byte));
  EXPECT_EQ(hex, "aaa45038c4c5155149a170887036");
}

TEST(KvRotor3t, ErrorOnNormalDataIsTwoThirdsOfRotor3s) {
  constexpr int kDim = 128;
  Rng rng(8);
  double error2 = 0, size2 = 0;
  std::vector<std::byte> row(size_t(KvRotor3t::row_bytes(kDim)));
  std::vector<float> out(kDim);
  for (int i = 0; i < 200; ++i) {
    const std::vector<float> x = normal_values(rng, kDim, 3);
    KvRotor3t::encode(x.data(), kDim, {.scale = KvScale::lsq}, row.data());
    KvRotor3t::decode(row.data(), kDim, {}, out.data());
    for (size_t d = 0; d < x.size(); ++d) error2 += std::pow(double(out[d]) - x[d], 2), size2 += double(x[d]) * x[d];
  }
  EXPECT_LT(error2 / size2, 0.0232);
  EXPECT_GT(error2 / size2, 0.0156);  // no code of 3 bits is better
}

}  // namespace
}  // namespace ridge
