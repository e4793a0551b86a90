// Speculation: several tokens a step, and the text that single tokens give.
//
// A proposer guesses what comes next. One step runs the last token and the guesses; every position is drawn from the
// model's own logits with the text's own random numbers, as without guesses, and a guess holds if it equals the draw in
// front of it. What follows the first wrong guess is trimmed, exactly. On the CPU a row's bits do not depend on the rows
// that come with it (decision 0007), so the text is the same, greedy or sampled. On a device a row rounds otherwise in a
// larger step: where two tokens are about as likely the text may go on otherwise.
//
// States (Gated DeltaNet) do not go back by trimming: a step with guesses keeps a checkpoint in front of it. Where a guess
// does not hold the sequence begins again there, and the tokens that stay run again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/rng.h"
#include "engine/backend.h"
#include "engine/distribution.h"

namespace ridge {

/// Most proposals of a step; an exact trim takes back twice as many.
inline constexpr int kMaxSpecDepth = 16;
/// Positions that a proposer of hidden states sees before it is tried again: behind one position alone the trained head
/// of ridge-ref guesses one token of three, behind 16 every second one and more, nearly as behind the whole text.
inline constexpr int kHeardPositions = 16;

class Engine;

class Proposer {
 public:
  virtual ~Proposer() = default;
  /// Up to n (1 or more) tokens that may follow `text`, the tokens of the sequence so far; none where nothing is known.
  virtual std::vector<int32_t> propose(std::span<const int32_t> text, int n) = 0;
  /// The same, each token drawn from its probabilities by the settings of the text; nothing where it has none.
  virtual std::vector<int32_t> draw(std::span<const int32_t> /*text*/, int /*n*/, const SamplerOptions& /*options*/,
                                    Rng& /*rng*/, std::vector<Distribution>& /*probabilities*/) {
    return {};
  }
  /// What the device's own loop proposes with behind `text`, whose last token the target has not run: that loop then
  /// moves the proposer's cache. Nothing where propose() must be asked.
  virtual std::optional<DeviceDraft> on_device(std::span<const int32_t> /*text*/) { return {}; }
  /// The loop has ended; `text` is what it was when the last step began. observe() follows for that step.
  virtual void leave_device(std::span<const int32_t> /*text*/) {}
  /// Whether observe() is to be called.
  virtual bool wants_hidden() const { return false; }
  /// The target ran these tokens from position `first` on, hidden [n_tokens, d_model]. What was known of these positions
  /// and later ones is void.
  virtual void observe(std::span<const int32_t> /*tokens*/, int /*first*/, View2<const float> /*hidden*/) {}
  /// The target went on unobserved, maybe with another text: what was observed so far is void.
  virtual void lose_track() {}
  /// Pretends to have read the text, which Session::fill() pretends to hold: for benchmarks.
  virtual void fill(std::span<const int32_t> /*text*/, uint64_t /*seed*/) {}
  /// Of the cache of its own.
  virtual int64_t bytes() const { return 0; }
};

/// The next proposal behind others, from a proposer's logits; none to end them.
using PickToken =
    std::function<std::optional<int32_t>(std::span<const float> logits, std::span<const int32_t> proposals)>;
/// What Proposer::draw() picks behind `text`, up to one whose likeliest token is less probable than p_min.
PickToken drawn_pick(std::span<const int32_t> text, const SamplerOptions& options, double p_min, Rng& rng,
                     std::vector<Distribution>& probabilities);

/// Makes a proposer for one text; what proposers share is loaded once.
struct ProposerMaker : std::function<std::unique_ptr<Proposer>()> {
  using function::function;
  int64_t bytes = 0;  ///< what Proposer::bytes() of each will be
};

/// What followed the longest earlier place that ends as the text does.
std::unique_ptr<Proposer> make_lookup_proposer();
/// The likeliest tokens by a smaller model, over a session of its own, up to one whose probability is below p_min.
/// `target` and `draft` must outlive the proposers. Throws usage when the vocabularies differ.
ProposerMaker draft_proposers(const Model& target, const Model& draft, const SessionOptions& options, double p_min = 0);
std::unique_ptr<Proposer> make_draft_proposer(const Model& target, const Model& draft, const SessionOptions& options,
                                              double p_min = 0);
/// The head of `target` for the tokens after the next one (model/mtp.h), with a cache of its own; it knows the text from
/// where it first observed the target. `path`: as load_mtp_head() takes it. `target` must outlive the proposers. Throws
/// Error.
ProposerMaker mtp_proposers(const Model& target, const std::string& path, const SessionOptions& options,
                            double p_min = 0);
std::unique_ptr<Proposer> make_mtp_proposer(const Model& target, const std::string& path, const SessionOptions& options,
                                            double p_min = 0);

/// The probability of the likeliest token.
double best_probability(std::span<const float> logits);

/// At most n: as many proposals as fit behind the next token of the sequence and can be taken back exactly.
int most_proposals(const SequencePool& pool, SeqId seq, int n);

/// What a proposer sees of its text. Steps at rest run unobserved; in front of the next observed one it is told so.
class Listening {
 public:
  /// The target runs tokens that the proposer does not see.
  void miss() { missed_ = true; }
  /// The proposer knows the text again, in another way.
  void catch_up() { missed_ = false; }
  bool missed() const { return missed_; }
  /// As Proposer::observe().
  void observe(Proposer& proposer, std::span<const int32_t> tokens, int first, View2<const float> hidden) {
    if (missed_) proposer.lose_track();
    missed_ = false;
    proposer.observe(tokens, first, hidden);
  }

 private:
  bool missed_ = false;  // tokens, since the proposer observed some
};

/// What steps of so many texts take: without proposals, and more for each of them.
class SpecCost {
 public:
  /// Counts a step with so many proposals. Whether a device has run such a step often enough: it queues the first one
  /// launch by launch, and records the second one.
  bool recorded(int n_proposed) { return ++n_runs_[n_proposed] > 2; }
  /// A step with so many proposals took so long, proposing included.
  void add(int n_proposed, double seconds);
  /// A step of a text at rest did: nothing was proposed, and nothing kept for a proposer.
  void add_resting(double seconds);
  /// Whether such a step is still to be measured for what steps without proposals take now.
  bool wants_rest() const { return n_plain_ > 0 && n_rests_ == 0 && stale(); }
  /// What counts as proposals of a step whose proposer took so long: one in vain, where it was long for nothing.
  int paid(int n_proposed, double proposing) const;
  double plain() const { return plain_; }  ///< seconds at rest; 0: not measured yet
  double extra() const;                    ///< seconds a proposal; thought to be few until they are measured
  /// Whether a step without proposals should be measured next.
  bool stale() const;

 private:
  void add_plain(double seconds);

  double plain_ = 0, extra_ = 0;
  double heard_ = 1;  // what a step without proposals takes that the proposer sees, in steps at rest
  int n_plain_ = 0, n_extra_ = 0, n_rests_ = 0, n_heard_ = 0;  // measurements
  bool rested_ = false;                                        // since the last step with proposals
  int age_ = 0;                                                // steps since the last one without proposals
  std::map<int, int> n_runs_;                                  // by proposals
};

/// How many proposals for one text hold, and whether they pay. Where they do not, they end, and are tried again at
/// growing distances, in two steps: in the first one the proposer catches up with the text. The distance is such that what
/// the tries lose is a small part of it.
class SpecDepth {
 public:
  /// n_asked proposals were wanted in a step of n_texts, n_proposed came (SpecCost::paid()), and the first n_accepted
  /// held; `cost` knows of the step, which took `seconds` (0: they say nothing).
  void add(int n_asked, int n_proposed, int n_accepted, const SpecCost& cost, int n_texts, double seconds);
  /// n steps were run alone(). To begin with them took `lost` steps at rest.
  void rested(int n, double lost = 0) { n_plain_ += n, lost_ += lost; }
  /// Steps that the text goes on for without its proposer. One that `listens` sees the last steps in front of a try.
  int alone(bool listens) const {
    return resting_ ? std::max(0, distance_ - n_plain_ - (listens ? kHeardPositions : 0)) : 0;
  }
  /// Rests for a while, to measure what that takes.
  void pause() { rest(2 * kHeardPositions); }
  /// Probability that a proposal holds whose predecessors do.
  double holds() const { return holds_; }
  bool resting() const { return resting_; }
  /// Whether it is time to try again.
  bool tries() const { return resting_ && n_plain_ >= distance_; }
  /// Whether the proposer must read first what came without it: such a step says nothing about cost.
  bool late() const { return late_; }

 private:
  void rest(int distance);

  double holds_ = 0.6;
  bool resting_ = true, late_ = true;
  int n_plain_ = 0, distance_ = 0;  // steps without proposals, and how many of them before the next try
  double lost_ = 0;                 // steps at rest that steps since the last rest took longer than their tokens
};

/// Proposals to ask for in the next step of n_texts, for each of those that have a proposer: as many as promise most
/// tokens a second.
std::vector<int> spec_depths(const SpecCost& cost, int n_texts, std::span<const SpecDepth* const> texts, int most);

struct SpecReport {
  int64_t n_steps = 0, n_proposed = 0, n_accepted = 0;
  int64_t n_ahead = 0;  ///< steps that a device ran without the host between proposing and verifying
  /// Tokens that a step gave.
  double tokens_per_step() const { return n_steps > 0 ? 1 + double(n_accepted) / double(n_steps) : 0; }
};

/// Proposals for one text at a time. Not thread-safe.
class Speculation {
 public:
  /// Where the text is: `outputs` has the logits after its last token.
  struct Target {
    Engine& engine;
    SequencePool& pool;
    SeqId seq;
    Outputs& outputs;
  };

  /// At most `most` (1 to kMaxSpecDepth) proposals a step, fewer where fewer pay; all of them, always, unless adaptive.
  /// Throws usage out of range.
  Speculation(std::unique_ptr<Proposer> proposer, int most, bool adaptive = true);

  /// As Session::draw(); `text` are the tokens of the sequence.
  int draw(const Target& target, const SamplerOptions& options, std::span<const int32_t> text, int n_max,
           const std::function<bool(int32_t)>& on_token);
  /// From here on every proposal counts as right with this probability, and the text is that of the proposals: for
  /// benchmarks of models whose text means nothing.
  void force(double share, uint64_t seed) { forced_ = share, luck_seed_ = seed, n_forced_ = 0; }
  /// From here on texts of a temperature above 0 take drawn proposals by rejection sampling: each with probability
  /// min(1, p / q), in place of a wrong one a token of what is left of p. Tokens have the same probabilities as without
  /// proposals; the text is another one.
  void reject() { rejects_ = true; }
  /// As Proposer::fill().
  void fill(std::span<const int32_t> text, uint64_t seed);
  /// Whether the next step is to keep hidden states for observe(). Where not, the proposer misses the step's tokens.
  bool asks_hidden();
  /// The target ran these tokens from position `first` on.
  void observe(std::span<const int32_t> tokens, int first, Outputs& outputs);
  const SpecReport& report() const { return report_; }

 private:
  struct Course;
  struct Step;
  /// Steps that the text goes on for without its proposer.
  int alone() const { return adaptive_ ? depth_.alone(proposer_->wants_hidden()) : 0; }
  /// Draws n tokens, or up to the text's end, as without speculation.
  void draw_alone(const Target& target, Course& text, int n);
  /// One step in which the host goes between proposing and verifying.
  void draw_step(const Target& target, Course& text);
  /// Draws up to the text's end or its next rest, in steps that a device queues ahead of their tokens. False, and
  /// nothing happened, where the host must go between proposing and verifying.
  bool draw_ahead(const Target& target, Course& text);
  /// What a step says about cost and proposals.
  void learn(const Step& step, bool on_device);

  std::unique_ptr<Proposer> proposer_;
  int most_;
  bool adaptive_, rejects_ = false;
  Listening listening_;
  std::optional<double> forced_;
  uint64_t luck_seed_ = 0, n_forced_ = 0;  // proposals that chance has decided on
  SpecCost cost_;
  SpecDepth depth_;
  SpecReport report_;
};

}  // namespace ridge
