// The verifier: runs proposals, keeps those that the model draws itself.
#include "engine/speculate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>

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
/// Steps that a device may be ahead of the tokens that were handed on.
constexpr int kStepsAhead = 3;

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

namespace {

/// Draws from the rows of one text's steps as Session::draw() would. A device draws all rows of a step at once, where
/// they are; on the host rows behind a wrong guess cost nothing.
class RowDrawer {
 public:
  RowDrawer(Engine& engine, Outputs& outputs, const SamplerOptions& options, std::span<const int32_t> text,
            bool on_host)
      : engine_(engine),
        outputs_(outputs),
        options_(options),
        sampler_(options, engine.plan().vocab_size),
        on_host_(on_host) {
    sampler_.accept(text);
  }

  /// From the last row of the step in front.
  int32_t first() {
    const View2<const float> logits = outputs_.logits();
    ++options_.first_draw;
    return sampler_.sample(logits.row(logits.rows - 1));
  }
  /// A step ran the last token of `text` and these proposals.
  void ran(std::span<const int32_t> text, std::span<const int32_t> proposals) {
    if (on_host_) return;
    std::vector<SamplerOptions> samplers(proposals.size() + 1, options_);
    std::vector<std::vector<int32_t>> recent(samplers.size());
    for (size_t i = 0; i < samplers.size(); ++i) {
      samplers[i].first_draw += i;
      if (options_.repeat_penalty == 1) continue;
      const auto n_text = std::min(text.size(), size_t(options_.repeat_last_n));
      recent[i].assign(text.end() - ptrdiff_t(n_text), text.end());
      recent[i].insert(recent[i].end(), proposals.begin(), proposals.begin() + ptrdiff_t(i));
    }
    tokens_ = engine_.backend().draw(outputs_, samplers, recent);
  }
  /// Row i of it, in order.
  int32_t row(size_t i) {
    ++options_.first_draw;
    return on_host_ ? sampler_.sample(outputs_.logits().row(int64_t(i))) : tokens_[i];
  }
  /// Settings of the next draw.
  const SamplerOptions& next() const { return options_; }
  /// The token of a row that was not drawn here.
  void take(int32_t token) { sampler_.accept({&token, 1}); }

 private:
  Engine& engine_;
  Outputs& outputs_;
  SamplerOptions options_;  // of the next draw
  Sampler sampler_;         // of the host
  bool on_host_;
  std::vector<int32_t> tokens_;
};

/// Takes back tokens of one text's newest step.
class StepBack {
 public:
  explicit StepBack(const Speculation::Target& target) : target_(target) {}
  StepBack(const StepBack&) = delete;
  ~StepBack() { release(); }

  /// In front of a step.
  void begin(bool speculates) {
    release();
    if (speculates && target_.pool.has_states()) before_ = target_.pool.checkpoint(target_.seq).or_throw();
    n_before_ = target_.pool.length(target_.seq);
  }
  /// The sequence keeps the first n tokens of the step, whose tokens were `step`; 1 or more.
  void keep(std::span<const int32_t> step, int n) {
    auto& [engine, pool, seq, outputs] = target_;
    if (pool.length(seq) == n_before_ + n) return;
    if (!before_) {
      pool.trim(seq, n_before_ + n, TrimMode::exact).or_throw();
      return;
    }
    pool.restore(seq, *before_);
    const SeqTokens again{seq, n};
    pool.reserve(seq, n).or_throw();
    engine.backend().run({.tokens = step.first(size_t(n)), .seqs = {&again, 1}, .logits = LogitRows::none}, pool,
                         outputs);
    outputs.logits();  // waits for a device: the time is this step's
  }

 private:
  void release() {
    if (before_) target_.pool.release(*before_);
    before_.reset();
  }

  Speculation::Target target_;
  std::optional<CheckpointId> before_;
  int n_before_ = 0;
};

}  // namespace

int Speculation::draw(const Target& target, const SamplerOptions& options, std::span<const int32_t> text, int n_max,
                      const std::function<bool(int32_t)>& on_token) {
  using Clock = std::chrono::steady_clock;
  auto& [engine, pool, seq, outputs] = target;
  if (n_max <= 0) return 0;
  std::vector<int32_t> known(text.begin(), text.end()), step, drawn;
  const bool rejects = rejects_ && options.temperature > 0;
  Rng rng(splitmix64(options.seed));
  std::vector<Distribution> probabilities;
  RowDrawer drawer(engine, outputs, options, text, rejects || !engine.on_device());
  drawn.push_back(drawer.first());
  StepBack back(target);
  for (int n_taken = 0;;) {
    for (size_t i = 0; i < drawn.size(); ++i) {
      ++n_taken;
      known.push_back(drawn[i]);
      if (on_token(drawn[i])) continue;
      if (i + 1 == drawn.size()) return n_taken;
      back.keep(step, int(i) + 1);
      report_.n_accepted -= int(drawn.size() - 1 - i);
      return n_taken;
    }
    const int n_past = pool.length(seq);
    if (n_taken == n_max || n_past == pool.n_ctx()) return n_taken;
    if (!rejects)
      if (const auto n_ahead = draw_ahead(target, drawer.next(), known, n_max - n_taken, on_token))
        return n_taken + *n_ahead;

    const Clock::time_point start = Clock::now();
    const SpecDepth* const one[] = {&depth_};
    const int wanted = adaptive_ ? spec_depths(cost_, 1, one, most_)[0] : most_;
    const int n = most_proposals(pool, seq, std::min(wanted, n_max - n_taken - 1));
    step.assign(1, known.back());
    if (n > 0)
      std::ranges::copy(rejects ? proposer_->draw(known, n, options, rng, probabilities) : proposer_->propose(known, n),
                        std::back_inserter(step));
    const Clock::duration proposing = Clock::now() - start;
    const SeqTokens tokens{seq, int(step.size())};
    back.begin(step.size() > 1);
    pool.reserve(seq, tokens.n_tokens).or_throw();
    const Batch batch{.tokens = step, .seqs = {&tokens, 1}, .logits = LogitRows::all, .hidden = wants_hidden()};
    engine.backend().run(batch, pool, outputs);
    drawer.ran(known, std::span(step).subspan(1));
    if (batch.hidden) observe(step, n_past, outputs);
    drawn.clear();
    for (size_t i = 0; i < step.size(); ++i) {
      if (rejects && i + 1 < step.size()) {
        std::vector<int32_t> recent = known;
        recent.insert(recent.end(), step.begin() + 1, step.begin() + 1 + ptrdiff_t(i));
        const Distribution p = distribution_of(options, outputs.logits().row(int64_t(i)), recent);
        const double ratio = probability_of(p, step[i + 1]) / probability_of(probabilities[i], step[i + 1]);
        const bool holds = rng.uniform() < ratio;
        drawn.push_back(holds ? step[i + 1] : draw_from(residual(p, probabilities[i]), rng));
        drawer.take(drawn.back());
        if (!holds) break;
        continue;
      }
      drawn.push_back(drawer.row(i));
      if (i + 1 == step.size()) break;
      if (forced_ ? Rng(luck_seed_ + n_forced_++ * kSplitmixStep).uniform() >= *forced_ : drawn.back() != step[i + 1])
        break;
      drawn.back() = step[i + 1];
    }
    const int n_proposed = tokens.n_tokens - 1, n_accepted = int(drawn.size()) - 1;
    back.keep(step, 1 + n_accepted);
    const int n_paid = cost_.paid(n_proposed, std::chrono::duration<double>(proposing).count());
    const bool timed = !engine.on_device() || cost_.recorded(n_proposed);
    if (timed && (n_paid == 0 || !depth_.late()))
      cost_.add(n_paid, std::chrono::duration<double>(Clock::now() - start).count());
    depth_.add(n, n_paid, n_accepted, cost_, 1);
    ++report_.n_steps;
    report_.n_proposed += n_proposed;
    report_.n_accepted += n_accepted;
  }
}

std::optional<int> Speculation::draw_ahead(const Target& target, const SamplerOptions& options,
                                           std::vector<int32_t>& known, int n_max,
                                           const std::function<bool(int32_t)>& on_token) {
  using Clock = std::chrono::steady_clock;
  auto& [engine, pool, seq, outputs] = target;
  if (!engine.on_device() || pool.has_states() || pool.calibrates(seq)) return {};
  const std::optional<DeviceDraft> draft = proposer_->on_device(known);
  if (!draft) return {};

  const int most = std::min(most_, kMostDeviceProposals);
  struct Queued {
    int n_proposed;
    Clock::time_point at;
  };
  std::deque<Queued> queued;
  int limit = 0, usual = 0;  // proposals that have room, and those of the newest step that was no measurement
  const auto depth = [&] {
    const SpecDepth* const one[] = {&depth_};
    int n = adaptive_ ? spec_depths(cost_, 1, one, most)[0] : most;
    // One step to measure is enough.
    const auto is_plain = [](const Queued& step) { return step.n_proposed == 0; };
    if (adaptive_ && cost_.stale() && std::ranges::any_of(queued, is_plain)) n = usual;
    else if (!adaptive_ || !cost_.stale()) usual = n;
    queued.push_back({std::min(n, limit), Clock::now()});
    return queued.back().n_proposed;
  };
  const std::unique_ptr<Guessing> steps = engine.backend().start_guessing({.pool = pool,
                                                                           .seq = seq,
                                                                           .outputs = outputs,
                                                                           .last = known.back(),
                                                                           .sampler = options,
                                                                           .recent = known,
                                                                           .forced_share = forced_.value_or(-1),
                                                                           .forced_seed = luck_seed_,
                                                                           .n_forced = n_forced_,
                                                                           .depth = depth},
                                                                          *draft);
  RIDGE_CHECK(steps, "the model's device does not run its head");
  // All that may have to be taken back exactly, when text ends.
  RunAhead run_ahead(*steps, kMostDeviceProposals + 2, std::min(kStepsAhead, kSpareRows / (most + 1)));
  Clock::time_point last = Clock::now();
  int n_taken = 0, n_kept = 0;
  bool more = true;
  while (more && n_taken < n_max && pool.length(seq) < pool.n_ctx()) {
    // As many steps as have room if all proposals hold.
    const int room = std::min(n_max - n_taken, pool.n_ctx() - pool.length(seq));
    limit = std::min(most, room - 1);
    run_ahead.run(std::max(1, room / (most + 1)), [&](std::span<const int32_t> numbers) {
      const std::span<const int32_t> tokens = numbers.subspan(1, size_t(numbers[0]));
      const Clock::time_point now = Clock::now(), start = std::max(last, queued.front().at);
      count(queued.front().n_proposed, int(tokens.size()) - 1, std::chrono::duration<double>(now - start).count());
      last = now;
      queued.pop_front();
      for (n_kept = 0; more && n_kept < ssize(tokens); ++n_kept) {
        ++n_taken;
        known.push_back(tokens[size_t(n_kept)]);
        more = on_token(known.back());
      }
      report_.n_accepted -= int(tokens.size()) - n_kept;
      return more;
    });
  }
  const std::vector<float> hidden = steps->leave(n_kept);
  // The step's tokens are those in front of what it drew.
  const int n_before = pool.length(seq) - n_kept;
  proposer_->leave_device(std::span(known).first(size_t(n_before) + 1));
  proposer_->observe(std::span(known).subspan(size_t(n_before), size_t(n_kept)), n_before,
                     View2<const float>(hidden.data(), n_kept, engine.plan().d_model));
  return n_taken;
}

void Speculation::count(int n_proposed, int n_accepted, double seconds) {
  if (cost_.recorded(n_proposed) && (n_proposed == 0 || !depth_.late())) cost_.add(n_proposed, seconds);
  depth_.add(n_proposed, n_proposed, n_accepted, cost_, 1);
  ++report_.n_steps;
  ++report_.n_ahead;
  report_.n_proposed += n_proposed;
  report_.n_accepted += n_accepted;
  n_forced_ += uint64_t(std::min(n_proposed, n_accepted + 1));
}

}  // namespace ridge
