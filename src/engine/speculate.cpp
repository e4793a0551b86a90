// The verifier: runs proposals, keeps those that the model draws itself.
#include "engine/speculate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <iterator>

#include "engine/engine.h"

namespace ridge {
namespace {

/// Least weight of a new measurement in a mean.
constexpr double kNewPlain = 1.0 / 8, kNewExtra = 1.0 / 4, kNewHolds = 1.0 / 8;
/// What a proposal must promise over what it costs, since both are estimates.
constexpr double kMargin = 1.1;
/// Proposals of a try, and steps without proposals before the first try again and at most: text may change. They are the
/// most at once where not even proposals that always hold would pay.
constexpr int kTryDepth = 2, kFirstDistance = 16, kMostDistance = 256;
/// What tries may lose, of the steps between them, and the most steps for that.
constexpr double kMostLost = 0.02;
constexpr int kLongestDistance = 1024;
/// Most that a step counts as having lost, a proposal in it, and one in which a draft reads what came without it, in steps
/// at rest: it may have waited for the machine.
constexpr double kMostLostStep = 2, kMostLostLate = 8;
/// Part of a step from which on a proposer that found nothing has cost something.
constexpr double kVain = 0.02;
/// Steps after which the time of a step without proposals is measured again.
constexpr int kPlainAge = 64;
/// Steps at the begin of a rest whose time says nothing: a device queues and records them first.
constexpr int kUnsteady = 2;

using Clock = std::chrono::steady_clock;
double seconds_of(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

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
    if (rested_) heard_ = std::max(1.0, mean_of(heard_, n_heard_++, seconds / plain_, 2, kNewPlain));
    else add_plain(seconds / heard_);
    age_ = 0;
  } else {
    rested_ = false;
    // A step cannot cost less for its proposals; one that waited says little.
    extra_ = std::max(0.0, mean_of(extra_, n_extra_, (seconds - plain_) / n_proposed, 2 * plain_, kNewExtra));
    ++n_extra_;
    ++age_;
  }
}

void SpecCost::add_resting(double seconds) {
  add_plain(seconds);
  ++n_rests_;
  rested_ = true;
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

void SpecDepth::rest(int distance) {
  resting_ = late_ = true;
  n_plain_ = 0;
  distance_ = std::max(std::min(distance, kMostDistance), int(std::min(lost_ / kMostLost, double(kLongestDistance))));
  lost_ = 0;
}

void SpecDepth::add(int n_asked, int n_proposed, int n_accepted, const SpecCost& cost, int n_texts, double seconds) {
  if (seconds > 0 && cost.plain() > 0) {
    const double most = late_ && n_proposed > 0 ? kMostLostLate : kMostLostStep * std::max(1, n_proposed);
    lost_ += n_texts * std::min(seconds / cost.plain() - 1, most) - n_accepted;
  }
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
  else if (price >= 1) rest(kMostDistance);
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
      : engine_(engine), outputs_(outputs), options_(options), on_host_(on_host) {
    go_on(text, 0);
  }

  /// From the last row of the step in front.
  int32_t first() {
    const View2<const float> logits = outputs_.logits();
    ++options_.first_draw;
    return sampler_->sample(drawn_of(logits.row(logits.rows - 1)));
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
    return on_host_ ? sampler_->sample(drawn_of(outputs_.logits().row(int64_t(i)))) : tokens_[i];
  }
  /// Settings of the next draw.
  const SamplerOptions& next() const { return options_; }
  /// Others drew the last n tokens of `text`.
  void go_on(std::span<const int32_t> text, int n) {
    options_.first_draw += uint64_t(n);
    sampler_.emplace(options_, engine_.plan().n_ids);
    sampler_->accept(text.last(std::min(text.size(), size_t(options_.repeat_last_n))));
  }
  /// The token of a row that was not drawn here.
  void take(int32_t token) { sampler_->accept({&token, 1}); }

 private:
  std::span<const float> drawn_of(std::span<const float> row) const { return row.first(size_t(engine_.plan().n_ids)); }

  Engine& engine_;
  Outputs& outputs_;
  SamplerOptions options_;          // of the next draw
  std::optional<Sampler> sampler_;  // of the host
  bool on_host_;
  std::vector<int32_t> tokens_;
};

/// Takes back tokens of a step, in front of which it is made.
class StepBack {
 public:
  StepBack(const Speculation::Target& target, bool speculates)
      : target_(target), n_before_(target.pool.length(target.seq)) {
    if (speculates && target.pool.has_states()) before_ = target.pool.checkpoint(target.seq).or_throw();
  }
  StepBack(const StepBack&) = delete;
  ~StepBack() {
    if (before_) target_.pool.release(*before_);
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
  Speculation::Target target_;
  int n_before_;
  std::optional<CheckpointId> before_;
};

}  // namespace

/// A text on its way.
struct Speculation::Course {
  RowDrawer drawer;
  std::vector<int32_t> known;  // the tokens so far; the cache has all but the last one
  int n_left;                  // tokens that may come
  const std::function<bool(int32_t)>& on_token;
  bool more = true;
  /// With rejection sampling: the settings of the text, and of the newest proposals what they were drawn from.
  const SamplerOptions* rejects;
  Rng rng;
  std::vector<Distribution> probabilities = {};

  bool take(int32_t token) {
    known.push_back(token);
    --n_left;
    more = on_token(token) && n_left > 0;
    return more;
  }
};

struct Speculation::Step {
  int n_asked = 0, n_proposed = 0, n_accepted = 0;
  int n_paid = 0;         // SpecCost::paid()
  double seconds = 0;     // that the step took
  double since_last = 0;  // and that passed since the one before
};

void Speculation::fill(std::span<const int32_t> text, uint64_t seed) {
  listening_.catch_up();
  proposer_->fill(text, seed);
}

bool Speculation::asks_hidden() {
  const bool asks = proposer_->wants_hidden() && alone() == 0;
  if (!asks) listening_.miss();
  return asks;
}

void Speculation::observe(std::span<const int32_t> tokens, int first, Outputs& outputs) {
  listening_.observe(*proposer_, tokens, first, outputs.hidden());
}

int Speculation::draw(const Target& target, const SamplerOptions& options, std::span<const int32_t> text, int n_max,
                      const std::function<bool(int32_t)>& on_token) {
  auto& [engine, pool, seq, outputs] = target;
  if (n_max <= 0) return 0;
  const bool rejects = rejects_ && options.temperature > 0;
  Course course{.drawer = {engine, outputs, options, text, rejects || !engine.on_device()},
                .known = {text.begin(), text.end()},
                .n_left = n_max,
                .on_token = on_token,
                .rejects = rejects ? &options : nullptr,
                .rng = Rng(splitmix64(options.seed))};
  course.take(course.drawer.first());
  while (course.more && pool.length(seq) < pool.n_ctx()) {
    if (const int n = alone(); n > 0) draw_alone(target, course, n);
    else if (rejects || !draw_ahead(target, course)) draw_step(target, course);
  }
  return n_max - course.n_left;
}

void Speculation::draw_alone(const Target& target, Course& text, int n) {
  auto& [engine, pool, seq, outputs] = target;
  listening_.miss();
  const Clock::time_point start = Clock::now();
  const SeqTokens one{seq, 1};
  pool.reserve(seq, 1).or_throw();
  engine.backend().run({.tokens = std::span(text.known).last(1), .seqs = {&one, 1}}, pool, outputs);
  n = std::min({n, text.n_left, pool.n_ctx() - pool.length(seq) + 1});
  int n_drawn = 0;
  double lost = 0;
  Clock::time_point last;
  draw_tokens(engine.backend(), pool, seq, outputs, text.drawer.next(), text.known, n, [&](int32_t token) {
    const Clock::time_point now = Clock::now();
    if (++n_drawn > kUnsteady) cost_.add_resting(seconds_of(now - last));
    else if (n_drawn == kUnsteady)
      lost = std::clamp(seconds_of(now - start) / cost_.plain() - kUnsteady, 0.0, kMostLostLate);
    const bool more = text.take(token);
    last = engine.on_device() ? now : Clock::now();  // a device works on while the token is handed on
    return more;
  });
  text.drawer.go_on(text.known, n_drawn);
  depth_.rested(n_drawn, lost);
  report_.n_steps += n_drawn;
  if (engine.on_device()) report_.n_ahead += n_drawn;
}

void Speculation::draw_step(const Target& target, Course& text) {
  auto& [engine, pool, seq, outputs] = target;
  const Clock::time_point start = Clock::now();
  const SpecDepth* const one[] = {&depth_};
  const int wanted = adaptive_ ? spec_depths(cost_, 1, one, most_)[0] : most_;
  const int n_past = pool.length(seq), n = most_proposals(pool, seq, std::min(wanted, text.n_left - 1));
  std::vector<int32_t> step(1, text.known.back()), drawn;
  if (n > 0)
    std::ranges::copy(text.rejects ? proposer_->draw(text.known, n, *text.rejects, text.rng, text.probabilities)
                                   : proposer_->propose(text.known, n),
                      std::back_inserter(step));
  const Clock::duration proposing = Clock::now() - start;
  const SeqTokens tokens{seq, int(step.size())};
  StepBack back(target, step.size() > 1);
  pool.reserve(seq, tokens.n_tokens).or_throw();
  const Batch batch{.tokens = step, .seqs = {&tokens, 1}, .logits = LogitRows::all, .hidden = asks_hidden()};
  engine.backend().run(batch, pool, outputs);
  text.drawer.ran(text.known, std::span(step).subspan(1));
  if (batch.hidden) observe(step, n_past, outputs);
  for (size_t i = 0; i < step.size(); ++i) {
    if (text.rejects && i + 1 < step.size()) {
      std::vector<int32_t> recent = text.known;
      recent.insert(recent.end(), step.begin() + 1, step.begin() + 1 + ptrdiff_t(i));
      const Distribution p = distribution_of(*text.rejects,
                                             outputs.logits().row(int64_t(i)).first(size_t(engine.plan().n_ids)),
                                             recent),
                         &q = text.probabilities[i];
      const double ratio = probability_of(p, step[i + 1]) / probability_of(q, step[i + 1]);
      const bool holds = text.rng.uniform() < ratio;
      drawn.push_back(holds ? step[i + 1] : draw_from(residual(p, q), text.rng));
      text.drawer.take(drawn.back());
      if (!holds) break;
      continue;
    }
    drawn.push_back(text.drawer.row(i));
    if (i + 1 == step.size()) break;
    if (forced_ ? Rng(luck_seed_ + n_forced_++ * kSplitmixStep).uniform() >= *forced_ : drawn.back() != step[i + 1])
      break;
    drawn.back() = step[i + 1];
  }
  const int n_proposed = tokens.n_tokens - 1, n_accepted = int(drawn.size()) - 1;
  back.keep(step, 1 + n_accepted);
  const double seconds = seconds_of(Clock::now() - start);
  learn({.n_asked = n,
         .n_proposed = n_proposed,
         .n_accepted = n_accepted,
         .n_paid = cost_.paid(n_proposed, seconds_of(proposing)),
         .seconds = seconds,
         .since_last = seconds},
        engine.on_device());
  size_t n_taken = 1;
  while (text.take(drawn[n_taken - 1]) && n_taken < drawn.size()) ++n_taken;
  back.keep(step, int(n_taken));
  report_.n_accepted -= int(drawn.size() - n_taken);
}

bool Speculation::draw_ahead(const Target& target, Course& text) {
  auto& [engine, pool, seq, outputs] = target;
  if (!engine.on_device() || pool.has_states() || pool.calibrates(seq) || listening_.missed()) return false;
  const std::optional<DeviceDraft> draft = proposer_->on_device(text.known);
  if (!draft) return false;

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
  Clock::time_point last = Clock::now();
  const std::unique_ptr<Guessing> steps = engine.backend().start_guessing({.pool = pool,
                                                                           .seq = seq,
                                                                           .outputs = outputs,
                                                                           .last = text.known.back(),
                                                                           .sampler = text.drawer.next(),
                                                                           .recent = text.known,
                                                                           .forced_share = forced_.value_or(-1),
                                                                           .forced_seed = luck_seed_,
                                                                           .n_forced = n_forced_,
                                                                           .depth = depth},
                                                                          *draft);
  RIDGE_CHECK(steps, "the model's device does not run its head");
  // All that may have to be taken back exactly, when text ends.
  RunAhead run_ahead(*steps, kMostDeviceProposals + 2, std::min(kStepsAhead, kSpareRows / (most + 1)));
  const size_t n_known = text.known.size();
  int n_kept = 0;
  while (text.more && alone() == 0 && pool.length(seq) < pool.n_ctx()) {
    // As many steps as have room if all proposals hold. Those of a try come one by one: each decides on the next.
    const int room = std::min(text.n_left, pool.n_ctx() - pool.length(seq));
    limit = std::min(most, room - 1);
    int n_steps = std::max(1, room / (most + 1));
    if (adaptive_ && depth_.resting()) n_steps = std::min(n_steps, std::max(1, depth_.alone(false)));
    run_ahead.run(n_steps, [&](std::span<const int32_t> numbers) {
      const std::span<const int32_t> tokens = numbers.subspan(1, size_t(numbers[0]));
      const Clock::time_point now = Clock::now(), start = std::max(last, queued.front().at);
      const int n_proposed = queued.front().n_proposed, n_accepted = int(tokens.size()) - 1;
      learn({.n_asked = n_proposed,
             .n_proposed = n_proposed,
             .n_accepted = n_accepted,
             .n_paid = n_proposed,
             .seconds = seconds_of(now - start),
             .since_last = seconds_of(now - last)},
            true);
      ++report_.n_ahead;
      n_forced_ += uint64_t(std::min(n_proposed, n_accepted + 1));
      last = now;
      queued.pop_front();
      n_kept = 1;
      while (text.take(tokens[size_t(n_kept) - 1]) && n_kept < ssize(tokens)) ++n_kept;
      report_.n_accepted -= int(tokens.size()) - n_kept;
      return text.more && alone() == 0;
    });
  }
  const std::vector<float> hidden = steps->leave(n_kept);
  text.drawer.go_on(text.known, int(text.known.size() - n_known));
  // The step's tokens are those in front of what it drew.
  const int n_before = pool.length(seq) - n_kept;
  proposer_->leave_device(std::span(text.known).first(size_t(n_before) + 1));
  proposer_->observe(std::span(text.known).subspan(size_t(n_before), size_t(n_kept)), n_before,
                     View2<const float>(hidden.data(), n_kept, engine.plan().d_model));
  return true;
}

void Speculation::learn(const Step& step, bool on_device) {
  const bool timed = !on_device || cost_.recorded(step.n_proposed);
  if (timed && (step.n_paid == 0 || !depth_.late())) cost_.add(step.n_paid, step.seconds);
  depth_.add(step.n_asked, step.n_paid, step.n_accepted, cost_, 1, timed ? step.since_last : 0);
  if (on_device && cost_.wants_rest()) depth_.pause();
  ++report_.n_steps;
  report_.n_proposed += step.n_proposed;
  report_.n_accepted += step.n_accepted;
}

}  // namespace ridge
