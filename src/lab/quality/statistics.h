// The statistics of a quality run, as pure functions over streams of scored tokens. No model, no files.
//
// Definitions and labels are llama-perplexity's, so that figures can be put beside each other. Errors are one standard
// error of the mean; errors of ratios and differences use the covariance of the paired tokens.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "op/score/row_score.h"

namespace ridge::lab {

struct Estimate {
  double value = 0;
  double error = 0;  ///< one standard error
};

/// Limits on a cache's cost in quality for it to be a default.
struct QualityLimits {
  double ppl_rise = 0.25;  ///< perplexity above the base's, absolute
  double kld = 0.02;       ///< mean divergence, nats
};
enum class Kept : uint8_t { unknown, yes, no };
/// Whether a cache keeps the limits. Two standard errors on either side of a limit decide; between them nothing does.
Kept keeps(const QualityLimits& limits, const Estimate& ppl_rise, const Estimate& kld);
std::string_view kept_name(Kept kept);  ///< "no verdict", "pass", "FAIL"

/// A share of items and its 95 % interval, by Wilson's rule.
struct Share {
  double value = 0, low = 0, high = 0;
};
/// `n` is 1 or more.
Share share_of(int64_t right, int64_t n);
/// McNemar's exact two-sided p: the chance that items which differ split as unevenly as `lost` and `gained`, or more.
double mcnemar_p(int64_t lost, int64_t gained);

/// Mean of a stream and its standard error; fewer than 11 values give no error.
class MeanStat {
 public:
  void add(double x) { ++count_, sum_ += x, sum2_ += x * x; }
  int64_t count() const { return count_; }
  double sum() const { return sum_; }
  Estimate mean() const;

 private:
  int64_t count_ = 0;
  double sum_ = 0, sum2_ = 0;
};

/// Perplexity from a stream of negative log-likelihoods.
class PerplexityStat {
 public:
  void add(double nll_nats) { nll_.add(nll_nats); }
  int64_t count() const { return nll_.count(); }
  double sum_nll() const { return nll_.sum(); }
  Estimate ppl() const;

 private:
  MeanStat nll_;
};

/// `values` sorted ascending, not empty; linear between neighbours. fraction in [0, 1].
double percentile(std::span<const float> sorted, double fraction);

/// One line of a distribution table.
struct Quantile {
  std::string_view label;
  double fraction;
};
/// llama-perplexity's lines: KLD has nine between Maximum and Minimum, delta-p eleven.
inline constexpr std::array<Quantile, 9> kKldQuantiles{{{"99.9%", 0.999},
                                                        {"99.0%", 0.990},
                                                        {"95.0%", 0.950},
                                                        {"90.0%", 0.900},
                                                        {"Median", 0.500},
                                                        {"10.0%", 0.100},
                                                        {"5.0%", 0.050},
                                                        {"1.0%", 0.010},
                                                        {"0.1%", 0.001}}};
inline constexpr std::array<Quantile, 11> kDeltaPQuantiles{{{"99.9%", 0.999},
                                                            {"99.0%", 0.990},
                                                            {"95.0%", 0.950},
                                                            {"90.0%", 0.900},
                                                            {"75.0%", 0.750},
                                                            {"Median", 0.500},
                                                            {"25.0%", 0.250},
                                                            {"10.0%", 0.100},
                                                            {"5.0%", 0.050},
                                                            {"1.0%", 0.010},
                                                            {"0.1%", 0.001}}};

/// The running means, cheap to ask for after every chunk.
struct PairMeans {
  int64_t count = 0;
  Estimate ppl, ppl_base;
  double correlation = 0;  ///< of the two per-token log-likelihoods; 1 when either does not vary
  Estimate ln_ratio;       ///< ln(PPL(Q)/PPL(base))
  Estimate ratio;          ///< PPL(Q)/PPL(base)
  Estimate difference;     ///< PPL(Q)-PPL(base)
  Estimate kld;
  Estimate delta_p;  ///< mean
  Estimate delta_p_rms;
  Estimate same_top;  ///< fraction of tokens
};

/// Everything, at the end.
struct PairReport {
  PairMeans means;
  double kld_max = 0, kld_min = 0;
  std::array<double, kKldQuantiles.size()> kld_quantiles{};
  double delta_p_max = 0, delta_p_min = 0;
  std::array<double, kDeltaPQuantiles.size()> delta_p_quantiles{};
};

/// A candidate against the base over a stream of scored tokens. Keeps two floats a token for the percentiles.
class PairStat {
 public:
  void add(const RowScore& score);
  int64_t count() const { return nll_.count(); }
  double sum_nll() const { return nll_.sum(); }
  PairMeans means() const;
  PairReport report() const;

 private:
  /// Covariance of the means of candidate and base; 0 below 10 tokens.
  double covariance_of_means() const;

  MeanStat nll_, nll_base_, kld_, delta_p_, delta_p2_;
  double sum_product_ = 0;
  int64_t same_top_ = 0;
  std::vector<float> klds_, delta_ps_;
};

}  // namespace ridge::lab
