// The statistics against answers that can be worked out by hand.
#include "lab/quality/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "op/score/score.h"

namespace ridge::lab {
namespace {

std::vector<float> logits_of(std::initializer_list<double> probabilities, double shift = 0) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(float(std::log(p) + shift));
  return logits;
}

RowScore pair_of_nll(double nll_base, double nll_candidate) {
  RowScore s{};
  s.nll_base = nll_base;
  s.nll = nll_candidate;
  return s;
}

TEST(Statistics, UniformLogitsHavePerplexityOfTheVocabulary) {
  const std::vector<float> logits(37, -3.5f);
  PerplexityStat stat;
  for (int i = 0; i < 100; ++i) stat.add(nll(logits, row_facts(logits), i % 37));
  EXPECT_NEAR(stat.ppl().value, 37, 1e-9);
  EXPECT_NEAR(stat.ppl().error, 0, 1e-5);
  EXPECT_EQ(stat.count(), 100);
}

TEST(Statistics, NllIsMinusTheLogOfTheProbabilityWhateverTheShift) {
  for (const double shift : {0.0, 50.0, -700.0, 10000.0}) {
    const auto logits = logits_of({0.5, 0.25, 0.25}, shift);
    EXPECT_NEAR(nll(logits, row_facts(logits), 0), std::log(2.0), 1e-3 * (1 + std::abs(shift) / 1000)) << shift;
    EXPECT_EQ(row_facts(logits).top, 0);
  }
}

TEST(Statistics, TopIsTheFirstOfEqualLogits) { EXPECT_EQ(row_facts(std::vector<float>{1, 7, 7, 2}).top, 1); }

TEST(Statistics, NonFiniteRowsAreSeen) {
  EXPECT_FALSE(row_facts(std::vector<float>{1, NAN}).finite);
  EXPECT_FALSE(row_facts(std::vector<float>{1, INFINITY}).finite);
  EXPECT_FALSE(row_facts(std::vector<float>{-INFINITY, 1}).finite);
  EXPECT_TRUE(row_facts(std::vector<float>{1, 2}).finite);
}

TEST(Statistics, PerplexityErrorIsTheStandardErrorTimesPerplexity) {
  PerplexityStat stat;
  for (int i = 0; i < 100; ++i) stat.add(i % 2 ? 1.0 : 3.0);  // mean 2, population variance 1
  const double standard_error = std::sqrt(1.0 / 99);
  EXPECT_NEAR(stat.ppl().value, std::exp(2.0), 1e-12);
  EXPECT_NEAR(stat.ppl().error, std::exp(2.0) * standard_error, 1e-12);
}

TEST(Statistics, TooFewValuesHaveNoError) {
  MeanStat stat;
  for (int i = 0; i < 10; ++i) stat.add(i);
  EXPECT_EQ(stat.mean().value, 4.5);
  EXPECT_EQ(stat.mean().error, 0);
  EXPECT_EQ(MeanStat().mean().value, 0);
}

TEST(Statistics, KldOfTwoCoinsIsTheClosedForm) {
  const double p = 0.8, q = 0.6;
  const RowScore s = score_row(logits_of({p, 1 - p}), logits_of({q, 1 - q}, 5), 0);
  EXPECT_NEAR(s.kld, p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q)), 1e-6);
  EXPECT_NEAR(s.delta_p, q - p, 1e-6);
  EXPECT_NEAR(s.nll, -std::log(q), 1e-6);
  EXPECT_NEAR(s.nll_base, -std::log(p), 1e-6);
  EXPECT_TRUE(s.same_top);
  EXPECT_FALSE(score_row(logits_of({0.8, 0.2}), logits_of({0.4, 0.6}), 0).same_top);
}

TEST(Statistics, EqualRowsDivergeByExactlyZero) {
  const auto row = logits_of({0.1, 0.2, 0.7}, 3.25);
  const RowScore s = score_row(row, row, 1);
  EXPECT_EQ(s.kld, 0);
  EXPECT_EQ(s.delta_p, 0);
}

TEST(Statistics, AConstantLossGivesARatioWithoutError) {
  PairStat stat;
  for (int i = 0; i < 1000; ++i) {
    const double base = 1 + 0.001 * (i * 37 % 1000);
    stat.add(pair_of_nll(base, base + 0.125));
  }
  const PairMeans m = stat.means();
  EXPECT_NEAR(m.ln_ratio.value, 0.125, 1e-12);
  EXPECT_NEAR(m.ln_ratio.error, 0, 1e-7);
  EXPECT_NEAR(m.ratio.value, std::exp(0.125), 1e-12);
  EXPECT_NEAR(m.correlation, 1, 1e-9);
  EXPECT_NEAR(m.difference.value, m.ppl.value - m.ppl_base.value, 1e-12);
  // Both errors are positive, and perfectly correlated ones subtract.
  EXPECT_NEAR(m.difference.error, m.ppl.error - m.ppl_base.error, 1e-7);
}

TEST(Statistics, IndependentLossesAddTheirVariances) {
  PairStat stat;  // all four combinations equally often: covariance zero
  for (int i = 0; i < 400; ++i) stat.add(pair_of_nll(i & 1 ? 1 : 3, i & 2 ? 2 : 6));
  const PairMeans m = stat.means();
  EXPECT_NEAR(m.correlation, 0, 1e-12);
  EXPECT_NEAR(m.ln_ratio.value, 2, 1e-12);
  EXPECT_NEAR(m.ln_ratio.error, std::sqrt((1.0 + 4.0) / 399), 1e-12);
  EXPECT_NEAR(m.ratio.error, std::exp(2.0) * m.ln_ratio.error, 1e-12);
  EXPECT_NEAR(m.difference.error, std::hypot(m.ppl.error, m.ppl_base.error), 1e-9);
}

TEST(Statistics, OppositeLossesCorrelateByMinusOne) {
  PairStat stat;
  for (int i = 0; i < 100; ++i) stat.add(pair_of_nll(i & 1 ? 1 : 3, i & 1 ? 3 : 1));
  EXPECT_NEAR(stat.means().correlation, -1, 1e-9);
  EXPECT_NEAR(stat.means().ln_ratio.error, 2 * std::sqrt(1.0 / 99), 1e-9);
}

TEST(Statistics, PercentilesInterpolateBetweenNeighbours) {
  const std::vector<float> values{0, 10, 20, 30};
  EXPECT_EQ(percentile(values, 0), 0);
  EXPECT_EQ(percentile(values, 1), 30);
  EXPECT_EQ(percentile(values, 0.5), 15);
  EXPECT_NEAR(percentile(values, 0.25), 7.5, 1e-12);
  EXPECT_EQ(percentile(std::vector<float>{4}, 0.9), 4);
}

TEST(Statistics, ReportOrdersTheDistributionWhateverTheStreamOrder) {
  PairStat stat;
  for (int i = 0; i <= 1000; ++i) {
    RowScore s{};
    s.kld = i * 8 % 1001;             // 0..1000, shuffled
    s.delta_p = 0.001 * s.kld - 0.5;  // -0.5..0.5
    s.same_top = i % 4 != 0;
    stat.add(s);
  }
  const PairReport r = stat.report();
  EXPECT_EQ(r.kld_max, 1000);
  EXPECT_EQ(r.kld_min, 0);
  for (size_t i = 0; i < kKldQuantiles.size(); ++i)
    EXPECT_NEAR(r.kld_quantiles[i], 1000 * kKldQuantiles[i].fraction, 1e-3) << kKldQuantiles[i].label;
  for (size_t i = 0; i < kDeltaPQuantiles.size(); ++i)
    EXPECT_NEAR(r.delta_p_quantiles[i], kDeltaPQuantiles[i].fraction - 0.5, 1e-6) << kDeltaPQuantiles[i].label;
  EXPECT_NEAR(r.delta_p_max, 0.5, 1e-6);
  EXPECT_NEAR(r.delta_p_min, -0.5, 1e-6);
  EXPECT_NEAR(r.means.kld.value, 500, 1e-9);
  EXPECT_NEAR(r.means.delta_p.value, 0, 1e-9);
  const double same = 750.0 / 1001;
  EXPECT_NEAR(r.means.same_top.value, same, 1e-12);
  EXPECT_NEAR(r.means.same_top.error, std::sqrt(same * (1 - same) / 1000), 1e-12);
}

TEST(Statistics, RmsOfAConstantDeltaIsItsSize) {
  PairStat stat;
  for (int i = 0; i < 50; ++i) {
    RowScore s{};
    s.delta_p = i & 1 ? 0.25 : -0.25;
    stat.add(s);
  }
  EXPECT_NEAR(stat.means().delta_p_rms.value, 0.25, 1e-12);
  EXPECT_NEAR(stat.means().delta_p_rms.error, 0, 1e-9);
  EXPECT_NEAR(stat.means().delta_p.error, 0.25 / 7, 1e-12);
}

TEST(Statistics, AnEmptyStreamGivesZeroesNotNaN) {
  const PairReport r = PairStat().report();
  EXPECT_EQ(r.means.count, 0);
  EXPECT_EQ(r.means.ppl.value, 0);
  EXPECT_EQ(r.kld_max, 0);
}

TEST(Statistics, RowsThatAreNotFiniteAreTold) {
  const std::vector<float> good{1, 2}, bad{1, NAN};
  EXPECT_EQ(score_row(good, good, 0).finite, 3);
  EXPECT_EQ(score_row(good, bad, 0).finite, 2);
  EXPECT_EQ(score_row(bad, good, 0).finite, 1);
  EXPECT_EQ(score_row({}, good, 0).finite, 1) << "no base: its bit stays 0";
  EXPECT_NEAR(score_row({}, good, 0).nll, std::log(1 + std::exp(1.0)), 1e-6);
}

TEST(ScoreOfLogProbs, LeavesOutWhatLiesAtSixteenNatsAndDoesNotNormalise) {
  const std::vector<float> candidate{1, 0, -1, 3};
  const RowFacts facts = row_facts(candidate);
  // p = 0.5, 0.25 (they sum to 0.75 on purpose), one at the cut, one just above it.
  const std::vector<float> base{float(std::log(0.5)), float(std::log(0.25)), -16.0f, -15.99f};
  const RowScore score = score_row_of_log_probs(base, candidate, 2);
  double kld = 0;
  for (const size_t i : {0, 1, 3}) kld += std::exp(double(base[i])) * (base[i] - (candidate[i] - facts.log_sum));
  EXPECT_NEAR(score.kld, kld, 1e-12);
  EXPECT_EQ(score.nll_base, 16);  // the target may lie at the cut
  EXPECT_NEAR(score.nll, facts.log_sum + 1, 1e-12);
  EXPECT_FALSE(score.same_top);
  EXPECT_TRUE(score_row_of_log_probs(candidate, candidate, 0).same_top);
}

}  // namespace
}  // namespace ridge::lab
