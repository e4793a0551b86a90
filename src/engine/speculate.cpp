// The verifier: runs proposals, keeps those that the model draws itself.
#include "engine/speculate.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/engine.h"

namespace ridge {
namespace {

/// Least weight of a new measurement in a mean.
constexpr double kNewPlain = 1.0 / 8, kNewExtra = 1.0 / 4, kNewHolds = 1.0 / 8;
/// What a proposal must promise over what it costs, since both are estimates.
constexpr double kMargin = 1.1;
/// Proposals of a try, and steps without proposals before the first try again and at most.
constexpr int kTryDepth = 2, kFirstDistance = 16, kMostDistance = 512;
/// The same where not even proposals that always hold would pay: a draft that reads the text again for each try costs
/// more than it can tell.
constexpr int kHopelessDistance = 256;
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

double best_probability(std::span<const float> logits) {
  const float best = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double(logit) - best);
  return 1 / sum;
}

void check_speculates(const Engine& engine) {
  if (engine.on_device())
    throw_error(ErrorKind::usage, "speculation runs on the CPU, not on {} (leave it out)", engine.info().device);
  const auto keeps_state = [](const LayerPlan& layer) { return layer.mixer == MixerKind::delta; };
  if (std::ranges::any_of(engine.plan().layers, keeps_state))
    throw_error(ErrorKind::usage,
                "a model whose layers keep a state does not speculate: wrong guesses cannot be taken "
                "back (leave speculation out)");
}

int most_proposals(const SequencePool& pool, SeqId seq, int n) {
  const int n_past = pool.length(seq);
  n = std::min(n, pool.n_ctx() - n_past - 1);
  // Going back behind the position that sets centres is not exact.
  return std::max(0, pool.calibrates(seq) ? std::min(n, kCalibration - n_past - 2) : n);
}

void SpecCost::add(int n_proposed, double seconds) {
  if (n_proposed == 0) {
    plain_ = mean_of(plain_, n_plain_, seconds, n_plain_ > 0 ? 2 * plain_ : seconds, kNewPlain);
    ++n_plain_;
    age_ = 0;
  } else {
    // A step cannot cost less for its proposals; one that waited says little.
    extra_ = std::max(0.0, mean_of(extra_, n_extra_, (seconds - plain_) / n_proposed, 2 * plain_, kNewExtra));
    ++n_extra_;
    ++age_;
  }
}

double SpecCost::extra() const { return n_extra_ > 0 ? extra_ : plain_ / 8; }

int SpecCost::paid(int n_proposed, double proposing) const {
  return n_proposed == 0 && n_plain_ > 0 && proposing > kVain * plain_ ? 1 : n_proposed;
}

bool SpecCost::stale() const { return n_plain_ == 0 || age_ >= kPlainAge; }

void SpecDepth::rest(int distance) {
  resting_ = late_ = true;
  n_plain_ = 0;
  distance_ = std::min(distance, kMostDistance);
}

void SpecDepth::add(int n_asked, int n_proposed, int n_accepted, const SpecCost& cost, int n_texts) {
  if (n_asked == 0) {
    if (++n_plain_ >= kFirstDistance && !resting_) rest(kFirstDistance);
    return;
  }
  if (n_proposed == 0) return;  // nothing was known, at no cost
  for (int i = 0; i < std::min(n_accepted + 1, n_proposed); ++i) holds_ += kNewHolds * ((i < n_accepted) - holds_);
  if (late_) {
    late_ = false;
    return;
  }
  const double price = kMargin * n_texts * cost.extra() / cost.plain();  // in tokens of steps without proposals
  if (holds_ > price) resting_ = false, n_plain_ = 0;
  else if (price >= 1) rest(std::max(kHopelessDistance, 2 * distance_));
  else rest(resting_ ? std::max(kFirstDistance, 2 * distance_) : kFirstDistance);
}

std::vector<int> spec_depths(const SpecCost& cost, int n_texts, std::span<const SpecDepth* const> texts, int most) {
  std::vector<int> depths(texts.size());
  if (cost.stale()) return depths;
  std::vector<double> gains(texts.size());  // tokens that one more proposal promises
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i]->tries()) depths[i] = texts[i]->late() ? 1 : std::min(most, kTryDepth);
    if (!texts[i]->resting()) gains[i] = texts[i]->holds();
  }
  double tokens = n_texts, seconds = cost.plain();
  while (!gains.empty()) {
    const auto best = size_t(std::ranges::max_element(gains) - gains.begin());
    if (gains[best] * seconds <= kMargin * tokens * cost.extra()) break;
    tokens += gains[best];
    seconds += cost.extra();
    gains[best] = ++depths[best] < most ? gains[best] * texts[best]->holds() : 0;
    if (std::ranges::all_of(gains, [](double gain) { return gain == 0; })) break;
  }
  return depths;
}

Speculation::Speculation(std::unique_ptr<Proposer> proposer, int most, bool adaptive)
    : proposer_(std::move(proposer)), most_(most), adaptive_(adaptive) {
  if (most < 1 || most > kMaxSpecDepth)
    throw_wrong_field("spec_depth", "spec_depth is {}, expected 1 to {}", most, kMaxSpecDepth);
}

int Speculation::draw(const Target& target, const SamplerOptions& options, std::span<const int32_t> text, int n_max,
                      const std::function<bool(int32_t)>& on_token) {
  using Clock = std::chrono::steady_clock;
  auto& [backend, pool, seq, outputs] = target;
  if (n_max <= 0) return 0;
  std::vector<int32_t> known(text.begin(), text.end()), step, drawn;
  Sampler sampler(options, int(outputs.logits().cols));
  sampler.accept(text);
  drawn.push_back(sampler.sample(outputs.logits().row(outputs.logits().rows - 1)));
  for (int n_taken = 0;;) {
    for (size_t i = 0; i < drawn.size(); ++i) {
      ++n_taken;
      known.push_back(drawn[i]);
      if (on_token(drawn[i])) continue;
      const int n_surplus = int(drawn.size() - 1 - i);
      pool.trim(seq, pool.length(seq) - n_surplus, TrimMode::exact).or_throw();
      report_.n_accepted -= n_surplus;
      return n_taken;
    }
    const int n_past = pool.length(seq);
    if (n_taken == n_max || n_past == pool.n_ctx()) return n_taken;

    const Clock::time_point start = Clock::now();
    const SpecDepth* const one[] = {&depth_};
    const int wanted = adaptive_ ? spec_depths(cost_, 1, one, most_)[0] : most_;
    const int n = most_proposals(pool, seq, std::min(wanted, n_max - n_taken - 1));
    step.assign(1, known.back());
    if (n > 0) std::ranges::copy(proposer_->propose(known, n), std::back_inserter(step));
    const Clock::duration proposing = Clock::now() - start;
    const SeqTokens tokens{seq, int(step.size())};
    pool.reserve(seq, tokens.n_tokens).or_throw();
    const Batch batch{.tokens = step, .seqs = {&tokens, 1}, .logits = LogitRows::all, .hidden = wants_hidden()};
    backend.run(batch, pool, outputs);
    if (batch.hidden) observe(step, n_past, outputs);
    const View2<const float> logits = outputs.logits();
    drawn.clear();
    for (size_t i = 0; i < step.size() && (i == 0 || drawn.back() == step[i]); ++i)
      drawn.push_back(sampler.sample(logits.row(int64_t(i))));
    const int n_proposed = tokens.n_tokens - 1, n_accepted = int(drawn.size()) - 1;
    pool.trim(seq, n_past + 1 + n_accepted, TrimMode::exact).or_throw();
    const int n_paid = cost_.paid(n_proposed, std::chrono::duration<double>(proposing).count());
    if (n_paid == 0 || !depth_.late()) cost_.add(n_paid, std::chrono::duration<double>(Clock::now() - start).count());
    depth_.add(n, n_paid, n_accepted, cost_, 1);
    ++report_.n_steps;
    report_.n_proposed += n_proposed;
    report_.n_accepted += n_accepted;
  }
}

}  // namespace ridge
