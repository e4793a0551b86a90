#include "lab/quality/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/metrics.h"

namespace ridge::lab {

Kept keeps(const QualityLimits& limits, const Estimate& ppl_rise, const Estimate& kld) {
  const auto low = [](const Estimate& of) { return of.value - 2 * of.error; };
  const auto high = [](const Estimate& of) { return of.value + 2 * of.error; };
  if (low(ppl_rise) > limits.ppl_rise || low(kld) > limits.kld) return Kept::no;
  return high(ppl_rise) <= limits.ppl_rise && high(kld) <= limits.kld ? Kept::yes : Kept::unknown;
}

std::string_view kept_name(Kept kept) {
  constexpr std::string_view kNames[] = {"no verdict", "pass", "FAIL"};
  return kNames[size_t(kept)];
}
namespace {

// Below this many values a standard error says nothing.
constexpr int64_t kFewestForError = 10;

template <size_t n>
std::array<double, n> quantiles(std::span<const float> sorted, const std::array<Quantile, n>& wanted) {
  std::array<double, n> values{};
  for (size_t i = 0; i < n; ++i) values[i] = percentile(sorted, wanted[i].fraction);
  return values;
}

std::vector<float> sorted_copy(std::span<const float> values) {
  std::vector<float> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

Share share_of(int64_t right, int64_t n) {
  RIDGE_CHECK(n > 0 && right >= 0 && right <= n, "{} of {}", right, n);
  constexpr double kZ = 1.959964;  // of a normal's 95 %
  const double share = double(right) / double(n), z2 = kZ * kZ / double(n);
  const double middle = (share + z2 / 2) / (1 + z2);
  const double half = kZ * std::sqrt(share * (1 - share) / double(n) + z2 / (4 * double(n))) / (1 + z2);
  return {share, right == 0 ? 0 : middle - half, right == n ? 1 : middle + half};
}

double mcnemar_p(int64_t lost, int64_t gained) {
  RIDGE_CHECK(lost >= 0 && gained >= 0, "{} lost, {} gained", lost, gained);
  const double n = double(lost + gained);
  double one_side = 0;
  for (int64_t k = 0; k <= std::min(lost, gained); ++k)
    one_side +=
        std::exp(std::lgamma(n + 1) - std::lgamma(double(k) + 1) - std::lgamma(n - double(k) + 1) - n * std::log(2.0));
  return std::min(1.0, 2 * one_side);
}

Estimate MeanStat::mean() const {
  if (count_ == 0) return {};
  const double n = double(count_), mean = sum_ / n, variance = sum2_ / n - mean * mean;
  return {mean, variance > 0 && count_ > kFewestForError ? std::sqrt(variance / (n - 1)) : 0};
}

Estimate PerplexityStat::ppl() const {
  const Estimate mean = nll_.mean();
  const double ppl = std::exp(mean.value);
  return {ppl, ppl * mean.error};
}

double percentile(std::span<const float> sorted, double fraction) {
  RIDGE_CHECK(!sorted.empty() && fraction >= 0 && fraction <= 1, "{} values, fraction {}", sorted.size(), fraction);
  const double place = fraction * double(sorted.size() - 1);
  const auto below = size_t(place);
  const double rest = place - double(below);
  return (1 - rest) * sorted[below] + rest * sorted[std::min(below + 1, sorted.size() - 1)];
}

void PairStat::add(const RowScore& score) {
  nll_.add(score.nll);
  nll_base_.add(score.nll_base);
  sum_product_ += score.nll * score.nll_base;
  kld_.add(score.kld);
  delta_p_.add(score.delta_p);
  delta_p2_.add(score.delta_p * score.delta_p);
  same_top_ += score.same_top;
  klds_.push_back(float(score.kld));
  delta_ps_.push_back(float(score.delta_p));
}

double PairStat::covariance_of_means() const {
  const double n = double(count());
  if (count() < kFewestForError) return 0;
  return (sum_product_ / n - (nll_.sum() / n) * (nll_base_.sum() / n)) / (n - 1);
}

PairMeans PairStat::means() const {
  PairMeans m;
  m.count = count();
  if (m.count == 0) return m;
  const Estimate ln_ppl = nll_.mean(), ln_base = nll_base_.mean();
  const double covariance = covariance_of_means();
  m.ppl = {std::exp(ln_ppl.value), std::exp(ln_ppl.value) * ln_ppl.error};
  m.ppl_base = {std::exp(ln_base.value), std::exp(ln_base.value) * ln_base.error};
  m.correlation = ln_ppl.error > 0 && ln_base.error > 0 ? covariance / (ln_ppl.error * ln_base.error) : 1;
  const double ratio_variance = ln_ppl.error * ln_ppl.error + ln_base.error * ln_base.error - 2 * covariance;
  m.ln_ratio = {ln_ppl.value - ln_base.value, std::sqrt(std::max(0.0, ratio_variance))};
  m.ratio = {std::exp(m.ln_ratio.value), std::exp(m.ln_ratio.value) * m.ln_ratio.error};
  const double difference_variance =
      m.ppl.error * m.ppl.error + m.ppl_base.error * m.ppl_base.error - 2 * m.ppl.value * m.ppl_base.value * covariance;
  m.difference = {m.ppl.value - m.ppl_base.value, std::sqrt(std::max(0.0, difference_variance))};
  m.kld = kld_.mean();
  m.delta_p = delta_p_.mean();
  const Estimate square = delta_p2_.mean();
  const double rms = std::sqrt(square.value);
  m.delta_p_rms = {rms, rms > 0 ? 0.5 / rms * square.error : 0};
  const double same = double(same_top_) / double(m.count);
  m.same_top = {same, m.count > 1 ? std::sqrt(same * (1 - same) / double(m.count - 1)) : 0};
  return m;
}

PairReport PairStat::report() const {
  PairReport r;
  r.means = means();
  if (count() == 0) return r;
  const std::vector<float> klds = sorted_copy(klds_), delta_ps = sorted_copy(delta_ps_);
  r.kld_max = klds.back(), r.kld_min = klds.front();
  r.kld_quantiles = quantiles(std::span(klds), kKldQuantiles);
  r.delta_p_max = delta_ps.back(), r.delta_p_min = delta_ps.front();
  r.delta_p_quantiles = quantiles(std::span(delta_ps), kDeltaPQuantiles);
  return r;
}

}  // namespace ridge::lab
