#include "engine/decode/spec_depth.h"

#include <algorithm>
#include <cstdint>

namespace ridge {
namespace {

/// Least weight of a new measurement in a mean.
constexpr double kNewPlain = 1.0 / 8, kNewExtra = 1.0 / 4, kNewAcceptance = 1.0 / 8;
/// What a proposal must promise over what it costs, since both are estimates.
constexpr double kMargin = 1.1;
/// Proposals of a try, and steps without proposals before the first try again and at most: text may change. They are
/// the most at once where not even proposals that always hold would pay.
constexpr int kTryDepth = 2, kFirstDistance = 16, kMostDistance = 256;
/// What tries may lose, of the steps between them, and the most steps for that.
constexpr double kMostLost = 0.02;
constexpr int kLongestDistance = 1024;
/// Most that a step counts as having lost, a proposal in it, and one in which a draft reads what came without it, in
/// steps that are paused: it may have waited for the machine.
constexpr double kMostLostStep = 2, kMostLostLate = 8;
/// Part of a step from which on a proposer that found nothing has cost something.
constexpr double kVain = 0.02;
/// Steps after which the time of a step without proposals is measured again.
constexpr int kPlainAge = 64;

/// What a new measurement makes of a mean of n. A step that waited for the machine says little about steps: `most` is
/// the most that counts.
double mean_of(double mean, int n, double value, double most, double least_weight) {
  return mean + std::max(least_weight, 1.0 / (n + 1)) * (std::clamp(value, -most, most) - mean);
}

}  // namespace

void SpecCost::add(int n_proposed, double seconds) {
  if (n_proposed == 0) {
    if (was_paused_) heard_ = std::max(1.0, mean_of(heard_, n_heard_++, seconds / plain_, 2, kNewPlain));
    else add_plain(seconds / heard_);
    age_ = 0;
  } else {
    was_paused_ = false;
    // A step cannot cost less for its proposals; one that waited says little.
    extra_ = std::max(0.0, mean_of(extra_, n_extra_, (seconds - plain_) / n_proposed, 2 * plain_, kNewExtra));
    ++n_extra_;
    ++age_;
  }
}

void SpecCost::add_paused(double seconds) {
  add_plain(seconds);
  ++n_pauses_;
  was_paused_ = true;
  age_ = 0;
}

void SpecCost::add_plain(double seconds) {
  plain_ = mean_of(plain_, n_plain_, seconds, n_plain_ > 0 ? 2 * plain_ : seconds, kNewPlain);
  ++n_plain_;
}

double SpecCost::extra() const { return n_extra_ > 0 ? extra_ : plain_ / 8; }

int SpecCost::paid(int n_proposed, double proposing) const {
  return n_proposed == 0 && n_plain_ > 0 && proposing > kVain * plain_ ? 1 : n_proposed;
}

bool SpecCost::stale() const { return n_plain_ == 0 || age_ >= kPlainAge; }

void SpecDepth::on_paused_steps(int n, double lost) {
  n_plain_ += n;
  lost_ += std::clamp(lost, 0.0, kMostLostLate);
}

void SpecDepth::pause(int distance) {
  paused_ = must_catch_up_ = true;
  n_plain_ = 0;
  distance_ = std::max(std::min(distance, kMostDistance), int(std::min(lost_ / kMostLost, double(kLongestDistance))));
  lost_ = 0;
}

void SpecDepth::add(int n_asked, int n_proposed, int n_accepted, const SpecCost& cost, int n_texts, double seconds) {
  if (seconds > 0 && cost.plain() > 0) {
    const double most = must_catch_up_ && n_proposed > 0 ? kMostLostLate : kMostLostStep * std::max(1, n_proposed);
    lost_ += n_texts * std::min(seconds / cost.plain() - 1, most) - n_accepted;
  }
  if (n_asked == 0) {
    if (++n_plain_ >= kFirstDistance && !paused_) pause(kFirstDistance);
    return;
  }
  if (n_proposed == 0) return;  // nothing was known, at no cost
  for (int i = 0; i < std::min(n_accepted + 1, n_proposed); ++i)
    acceptance_ += kNewAcceptance * ((i < n_accepted) - acceptance_);
  if (must_catch_up_) {
    must_catch_up_ = false;
    return;
  }
  const double price = kMargin * n_texts * cost.extra() / cost.plain();  // in tokens of steps without proposals
  if (acceptance_ > price) paused_ = false, n_plain_ = 0;
  else if (price >= 1) pause(kMostDistance);
  else pause(paused_ ? std::max(kFirstDistance, 2 * distance_) : kFirstDistance);
}

std::vector<int> spec_depths(const SpecCost& cost, int n_texts, std::span<const SpecDepth* const> texts, int most) {
  std::vector<int> depths(texts.size());
  if (cost.stale()) return depths;
  std::vector<double> gains(texts.size());  // tokens that one more proposal promises
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i]->probes()) depths[i] = texts[i]->must_catch_up() ? 1 : std::min(most, kTryDepth);
    if (!texts[i]->paused()) gains[i] = texts[i]->acceptance();
  }
  double tokens = n_texts, seconds = cost.plain();
  while (!gains.empty()) {
    const auto best = size_t(std::ranges::max_element(gains) - gains.begin());
    if (gains[best] * seconds <= kMargin * tokens * cost.extra()) break;
    tokens += gains[best];
    seconds += cost.extra();
    gains[best] = ++depths[best] < most ? gains[best] * texts[best]->acceptance() : 0;
    if (std::ranges::all_of(gains, [](double gain) { return gain == 0; })) break;
  }
  return depths;
}

}  // namespace ridge
