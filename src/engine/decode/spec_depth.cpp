#include "engine/decode/spec_depth.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>

namespace ridge {
namespace {

/// Weight of a new measurement in a mean, and in one that follows the text faster: with it chance alone would end
/// proposals that pay. Tries go by the second.
constexpr double kNewAcceptance = 1.0 / 20, kNewRecent = 1.0 / 8;
/// Tokens that steps since the best one have lost when the text has changed: the longer mean knows it late.
constexpr double kMostSlump = 5;
/// Margin by which a proposal's expected tokens must exceed its cost, since both are estimates.
constexpr double kMargin = 1.1;
/// Proposals of a try, and steps without proposals before the first try again and at most: text may change. They are
/// the most at once where not even proposals that always hold would pay.
constexpr int kTryDepth = 2, kFirstDistance = 16, kMostDistance = 256;
/// Part of any kWindow steps that tries may lose, and the most steps from one try to the next for that.
constexpr double kMostLost = 0.02;
constexpr int kWindow = 512, kLongestDistance = 2048;
/// Most that a step counts as having lost, a proposal in it, and one in which a draft reads what came without it, in
/// steps that are paused: it may have waited for the machine.
constexpr double kMostLostStep = 2, kMostLostLate = 8;
/// Part of a step from which on a proposer that found nothing has cost something.
constexpr double kVain = 0.02;
/// Steps after which the time of a step without proposals is measured again, and while few were.
constexpr int kPlainAge = 64, kFirstPlainAge = 8, kFewPlain = 5;
/// How far apart times of equal steps may be.
constexpr double kAgree = 1.3;
/// Steps after which the time of a step with proposals is forgotten.
constexpr int kForgotten = 2048;
/// Proposals in a row whose gain is weighed.
constexpr int kMostWeighed = 8;

/// The lower quartile: steps that wait for the machine are slow, none is fast.
double lower_quartile(std::span<double> values) {
  const auto at = values.begin() + (std::ssize(values) - 1) / 4;
  std::ranges::nth_element(values, at);
  return *at;
}

}  // namespace

double RecentTimes::value() const {
  if (n_ == 0) return 0;
  std::array<double, 5> values = newest_;
  return lower_quartile({values.data(), std::min(values.size(), size_t(n_))});
}

bool RecentTimes::is_settled() const {
  if (n_ < 3 || n_ >= 2 * int(newest_.size())) return n_ >= 3;
  std::array<double, 5> values = newest_;
  const auto end = values.begin() + std::min(ptrdiff_t(n_), std::ssize(values));
  std::partial_sort(values.begin(), values.begin() + 2, end);
  return values[1] <= kAgree * values[0];
}

void SpecCost::add(int n_proposed, double seconds) {
  ++n_steps_;
  if (n_proposed == 0) {
    if (was_paused_) heard_.add(std::max(1.0, seconds / plain()));
    else plain_.add(seconds / listening());
    age_ = 0;
    ++n_unproposed_;
  } else {
    was_paused_ = false;
    n_unproposed_ = 0;
    ++n_extra_;
    std::erase_if(proposed_, [&](const auto& of) { return n_steps_ - of.second.at > kForgotten; });
    Proposed& proposed = proposed_[n_proposed];
    proposed.seconds.add(seconds);
    proposed.at = n_steps_;
    ++age_;
  }
}

void SpecCost::add_paused(double seconds) {
  plain_.add(seconds);
  ++n_pauses_;
  ++n_unproposed_;
  was_paused_ = true;
  age_ = 0;
}

std::vector<double> SpecCost::extras(int most) const {
  struct Point {
    int n;
    double extra;
    bool is_sure;
  };
  std::vector<Point> points = {{.n = 0, .extra = 0, .is_sure = true}};
  for (const auto& [n, proposed] : proposed_)
    points.push_back(
        {n, std::max(0.0, proposed.seconds.value() - plain() * listening()), proposed.seconds.is_settled()});
  // A time that waited for the machine does not count: fewer proposals cost no more, and few times, of which no two
  // agree, no more than in proportion to fewer proposals. So the number is tried until it is known.
  for (size_t i = points.size() - 1; i > 1; --i) points[i - 1].extra = std::min(points[i - 1].extra, points[i].extra);
  for (size_t i = 2; i < points.size(); ++i)
    if (!points[i].is_sure)
      points[i].extra = std::min(points[i].extra, points[i - 1].extra * points[i].n / points[i - 1].n);

  std::vector<double> extras(static_cast<size_t>(most) + 1);
  double each = plain() / 8;
  for (int n = 1, i = 1; n <= most; ++n) {
    while (i < int(points.size()) && points[size_t(i)].n < n) ++i;
    if (i < int(points.size())) {
      const Point &from = points[size_t(i) - 1], &to = points[size_t(i)];
      each = (to.extra - from.extra) / (to.n - from.n);
    }
    extras[size_t(n)] = extras[size_t(n) - 1] + each;
  }
  return extras;
}

int SpecCost::paid(int n_proposed, double proposing) const {
  return n_proposed == 0 && plain_.n() > 0 && proposing > kVain * plain() ? 1 : n_proposed;
}

bool SpecCost::wants_pause() const { return plain_.n() > 0 && n_pauses_ == 0 && age_ >= kPlainAge; }

bool SpecCost::is_old() const { return age_ >= (plain_.n() < kFewPlain ? kFirstPlainAge : kPlainAge); }

bool SpecCost::is_hopeless(int n_texts) const {
  return knows_extra() && n_unproposed_ < kMostDistance && gain(1, n_texts, 0) <= 0;
}

bool SpecCost::pays(double acceptance, int n_texts, int n_others) const {
  return gain(acceptance, n_texts, n_others) > listening() - 1;
}

std::vector<double> SpecCost::prices(int most, int n_texts, int n_others) const {
  std::vector<double> prices = extras(n_others + most);
  prices.erase(prices.begin(), prices.begin() + n_others);
  const double of_others = prices[0];
  for (double& price : prices) price = n_texts * (price - of_others) / plain();
  return prices;
}

double SpecCost::gain(double acceptance, int n_texts, int n_others) const {
  const std::vector<double> cost = prices(kMostWeighed, n_texts, n_others);
  double holds = 1, tokens = 0, gain = -1;
  for (int n = 1; n <= kMostWeighed; ++n) {
    tokens += holds *= acceptance;
    gain = std::max(gain, tokens - kMargin * cost[size_t(n)]);
  }
  return gain;
}

void SpecDepth::on_paused_steps(int n, double lost) {
  n_plain_ += n;
  lost_ += std::clamp(lost, 0.0, kMostLostLate);
}

void SpecDepth::pause(int distance, int n_texts) {
  paused_ = must_catch_up_ = true;
  n_plain_ = 0;
  double least = 0;  // so that no more tries fall into a window than may be lost there
  if (lost_ > 0) {
    const int n_tries = int(kMostLost * kWindow / lost_);
    // Tries of several texts cost each of them much: one that falls on the window's end counts too.
    least = n_tries > 0 ? kWindow / std::max(1, n_tries - (n_texts > 1)) : lost_ / kMostLost;
  }
  distance_ = std::max(std::min(distance, kMostDistance), int(std::min(least, double(kLongestDistance))));
  lost_ = 0;
}

void SpecDepth::add(int n_asked, int n_proposed, int n_accepted, const SpecStep& step) {
  const auto& [cost, n_texts, n_others, seconds] = step;
  if (seconds > 0 && cost.plain() > 0) {
    const double most = must_catch_up_ && n_proposed > 0 ? kMostLostLate : kMostLostStep * std::max(1, n_proposed);
    lost_ += n_texts * std::min(seconds / cost.plain() - 1, most) - n_accepted;
  }
  if (n_asked == 0) {
    ++n_plain_;
    if (paused_ ? probes() && cost.is_hopeless(n_texts) : n_plain_ >= kFirstDistance)
      pause(paused_ ? kMostDistance : kFirstDistance, n_texts);
    return;
  }
  if (n_proposed == 0) return;  // nothing was known, at no cost
  for (int i = 0; i < std::min(n_accepted + 1, n_proposed); ++i) {
    acceptance_ += (paused_ ? kNewRecent : kNewAcceptance) * ((i < n_accepted) - acceptance_);
    recent_ += kNewRecent * ((i < n_accepted) - recent_);
  }
  slump_ = paused_ ? 0 : std::max(0.0, slump_ + cost.prices(n_proposed, n_texts, n_others).back() - n_accepted);
  if (slump_ > kMostSlump) acceptance_ = std::min(acceptance_, recent_);  // the text has changed
  if (must_catch_up_) {
    must_catch_up_ = false;
    return;
  }
  if (cost.pays(acceptance_, n_texts, n_others)) paused_ = false, n_plain_ = 0;
  else if (paused_ && n_accepted == n_proposed && cost.pays(1, n_texts, n_others))
    return;  // the try goes on while it loses nothing
  else if (cost.is_hopeless(n_texts)) pause(kMostDistance, n_texts);
  else pause(paused_ ? std::max(kFirstDistance, 2 * distance_) : kFirstDistance, n_texts);
}

std::vector<int> spec_depths(const SpecCost& cost, int n_texts, std::span<const SpecDepth* const> texts, int most) {
  std::vector<int> depths(texts.size());
  if (cost.stale()) return depths;
  std::vector<double> gains(texts.size());  // tokens that one more proposal promises
  bool tries = cost.is_hopeless(n_texts);   // one text at a time: all of them pay for a try
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i]->probes() && !std::exchange(tries, true))
      depths[i] = texts[i]->must_catch_up() ? 1 : std::min(most, kTryDepth);
    if (!texts[i]->paused()) gains[i] = texts[i]->acceptance();
  }
  // The likeliest proposals first, and of all their numbers the one that promises most tokens a second.
  int n_tried = 0;
  for (const int n : depths) n_tried += n;
  const std::vector<double> extras =
      cost.extras(n_tried + int(std::ranges::count_if(gains, [](double g) { return g > 0; })) * most);
  const auto rate = [&](double tokens, int n) {
    return tokens / (cost.plain() + kMargin * (extras[size_t(n)] - extras[size_t(n_tried)]));
  };
  std::vector<int> deeper = depths;
  double tokens = n_texts, best_rate = rate(tokens, n_tried);
  for (int n = n_tried; std::ranges::any_of(gains, [](double gain) { return gain > 0; });) {
    const auto best = size_t(std::ranges::max_element(gains) - gains.begin());
    tokens += gains[best];
    gains[best] = ++deeper[best] < most ? gains[best] * texts[best]->acceptance() : 0;
    if (const double of = rate(tokens, ++n); of > best_rate) best_rate = of, depths = deeper;
  }
  return depths;
}

}  // namespace ridge
