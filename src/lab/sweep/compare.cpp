#include "lab/sweep/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"

namespace ridge::lab {
namespace {

constexpr int kResamples = 2000;
constexpr uint64_t kSeed = 20240607;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Takes the values apart; not of an empty vector.
double median(std::vector<double>& values) {
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + int64_t(middle), values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  return (*std::max_element(values.begin(), values.begin() + int64_t(middle)) + upper) / 2;
}
double median_of(std::span<const double> values) {
  std::vector<double> copy(values.begin(), values.end());
  return median(copy);
}

/// 3 x median absolute deviation / median.
double relative_spread(std::span<const double> values) {
  const double centre = median_of(values);
  std::vector<double> deviations;
  for (const double value : values) deviations.push_back(std::abs(value - centre));
  return 3 * median(deviations) / centre;
}

/// Symmetric: equally far below 0 for "slower" and above 0 for "faster".
double effect_of(double ratio) { return ratio >= 1 ? ratio - 1 : 1 - 1 / ratio; }

/// The effect that is closer to none; opposite ones are none.
double nearer(double a, double b) {
  if ((a > 0) != (b > 0)) return 0;
  return std::abs(a) < std::abs(b) ? a : b;
}

double resampled_median(std::span<const double> values, std::vector<double>& scratch, Rng& rng) {
  scratch.resize(values.size());
  for (double& value : scratch) value = values[rng.next() % values.size()];
  return median(scratch);
}

bool are_times(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v) && v > 0; });
}

Row sample_counts(const Verdict& v) { return {v.n_a, v.n_again, v.n_b}; }
std::string percent(double value) { return fmt::format("{:.1f} %", 100 * value); }

}  // namespace

Verdict judge(std::span<const double> a, std::span<const double> again, std::span<const double> b, double budget) {
  Verdict v{.ratio = kNaN,
            .low = kNaN,
            .high = kNaN,
            .effect = kNaN,
            .aa_effect = kNaN,
            .spread = kNaN,
            .noise = kNaN,
            .budget = budget,
            .has_control = !again.empty(),
            .n_a = int(a.size()),
            .n_again = int(again.size()),
            .n_b = int(b.size())};
  const auto few = [](size_t n) { return n < size_t(kFewestSamples); };
  if (few(a.size()) || few(b.size()) || (v.has_control && few(again.size()))) {
    v.why_none = fmt::format("fewer than {} samples", kFewestSamples);
    return v;
  }
  if (!are_times(a) || !are_times(again) || !are_times(b)) {
    v.why_none = "a sample is not a time above 0";
    return v;
  }
  std::vector<double> both(a.begin(), a.end());
  both.insert(both.end(), again.begin(), again.end());
  v.ratio = median_of(both) / median_of(b);
  v.effect = effect_of(median_of(a) / median_of(b));
  if (v.has_control) v.effect = nearer(v.effect, effect_of(median_of(again) / median_of(b)));
  v.aa_effect = v.has_control ? effect_of(median_of(a) / median_of(again)) : 0;
  v.spread = std::max({relative_spread(a), v.has_control ? relative_spread(again) : 0, relative_spread(b)});
  v.noise = std::max(std::abs(v.aa_effect), v.spread);

  Rng rng(kSeed);
  std::vector<double> ratios, scratch;
  for (int i = 0; i < kResamples; ++i) {
    const double upper = resampled_median(both, scratch, rng);
    ratios.push_back(upper / resampled_median(b, scratch, rng));
  }
  std::sort(ratios.begin(), ratios.end());
  v.low = ratios[size_t(0.025 * kResamples)];
  v.high = ratios[size_t(0.975 * kResamples) - 1];

  if (std::abs(v.effect) <= v.noise)
    v.why_none = fmt::format("the effect of {} is inside the noise of {}", percent(v.effect), percent(v.noise));
  else if (std::abs(v.effect) <= budget)
    v.why_none = fmt::format("the effect of {} is inside the budget of {}", percent(v.effect), percent(budget));
  else if (v.low <= 1 && v.high >= 1) v.why_none = "the 95 % interval includes no difference";
  else v.answer = v.effect > 0 ? Verdict::Answer::faster : Verdict::Answer::slower;
  return v;
}

std::string_view answer_name(Verdict::Answer answer) {
  constexpr std::string_view kNames[] = {"NO VERDICT", "FASTER", "SLOWER"};
  return kNames[size_t(answer)];
}

std::string ratio_text(const Verdict& v) { return fmt::format("{:.2f}x [{:.2f}, {:.2f}]", v.ratio, v.low, v.high); }

std::string verdict_text(const Verdict& v) {
  if (!std::isfinite(v.ratio)) return fmt::format("NO VERDICT: {}", v.why_none);
  const std::string control = v.has_control ? "A/A " + percent(v.aa_effect) : "no A/A";
  return fmt::format("{}: {}, noise {} ({}, 3 MAD {}){}{}", answer_name(v.answer), ratio_text(v), percent(v.noise),
                     control, percent(v.spread), v.why_none.empty() ? "" : "; ", v.why_none);
}

Columns<Verdict> verdict_columns() {
  return {
      {"verdict", "-", "FASTER, SLOWER or NO VERDICT: of B", [](auto& v) { return answer_name(v.answer); }},
      {"ratio", "-", "how many times as fast B is as A", &Verdict::ratio},
      {"ratio_low_95", "-", "lower end of its 95 % interval", &Verdict::low},
      {"ratio_high_95", "-", "upper end of that interval", &Verdict::high},
      {"effect", "-", "ratio - 1, or 1 - 1/ratio below 1", &Verdict::effect},
      {"aa_effect", "-", "the same of A measured again", [](auto& v) { return when(v.has_control, v.aa_effect); }},
      {"spread_3_mad", "-", "3 median absolute deviations over the median", &Verdict::spread},
      {"noise", "-", "the larger of aa_effect and spread_3_mad", &Verdict::noise},
      {"budget", "-", "effects up to this do not matter", &Verdict::budget},
      {"why_none", "-", "why there is no verdict", [](auto& v) { return when(!v.why_none.empty(), v.why_none); }},
      {"n_samples", "samples", "of A, of A again and of B", &sample_counts},
  };
}

}  // namespace ridge::lab
