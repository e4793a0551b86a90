// The verifier: runs proposals, keeps those that the model draws itself.
#include "engine/speculate.h"

#include <algorithm>
#include <chrono>

#include "base/result.h"

namespace ridge {
namespace {

/// Weight of a new measurement in a mean.
constexpr double kNew = 1.0 / 8;
/// What proposals must promise over plain steps, since both are estimates.
constexpr double kMargin = 1.02;
/// Proposals of a try, and the most plain steps between two tries.
constexpr int kTryDepth = 2, kMostDistance = 512;

/// What a new measurement makes of a mean. A step that waited for the machine says little about steps: `most` is the
/// most that counts.
double mean_of(double mean, double value, double most) { return mean + kNew * (std::clamp(value, -most, most) - mean); }

}  // namespace

int SpecDepth::best() const {
  double best_rate = kMargin / plain_, tokens = 1, held = 1;
  int best = 0;
  for (int k = 1; k <= most_; ++k) {
    tokens += held *= holds_;
    const double rate = tokens / (plain_ + k * extra_);
    if (rate > best_rate) best = k, best_rate = rate;
  }
  return best;
}

int SpecDepth::next() const {
  if (plain_ <= 0) return 0;
  const int n = best();
  return n == 0 && n_plain_ >= distance_ ? std::min(most_, kTryDepth) : n;
}

void SpecDepth::add(int n_proposed, int n_accepted, double seconds) {
  if (n_proposed == 0) {
    // Until proposals are measured they are thought to be cheap.
    if (plain_ <= 0) plain_ = seconds, extra_ = seconds / 8;
    plain_ = mean_of(plain_, seconds, 2 * plain_);
    ++n_plain_;
    return;
  }
  for (int i = 0; i < std::min(n_accepted + 1, n_proposed); ++i) holds_ += kNew * ((i < n_accepted) - holds_);
  extra_ = std::max(0.0, mean_of(extra_, (seconds - plain_) / n_proposed, plain_));
  n_plain_ = 0;
  distance_ = best() > 0 ? 16 : std::min(2 * distance_, kMostDistance);
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
  SpecDepth depth(most_);
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
    int n = std::min({adaptive_ ? depth.next() : most_, n_max - n_taken - 1, pool.n_ctx() - n_past - 1});
    // Going back behind the position that sets centres is not exact.
    if (pool.calibrates(seq)) n = std::min(n, kCalibration - n_past - 2);
    step.assign(1, known.back());
    if (n > 0) std::ranges::copy(proposer_->propose(known, n), std::back_inserter(step));
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
    depth.add(n_proposed, n_accepted, std::chrono::duration<double>(Clock::now() - start).count());
    ++report_.n_steps;
    report_.n_proposed += n_proposed;
    report_.n_accepted += n_accepted;
  }
}

}  // namespace ridge
