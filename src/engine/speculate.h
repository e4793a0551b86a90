// Speculation: several tokens a step, and the text that single tokens give.
//
// A proposer guesses what comes next. One step runs the last token and the guesses; every position is drawn from the
// model's own logits with the text's own random numbers, as without guesses, and a guess holds if it equals the draw in
// front of it. What follows the first wrong guess is trimmed, exactly. A row's bits do not depend on the rows that come
// with it (decision 0007), so the text is the same, greedy or sampled.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend.h"

namespace ridge {

/// Most proposals of a step; an exact trim takes back twice as many.
inline constexpr int kMaxSpecDepth = 16;

class Proposer {
 public:
  virtual ~Proposer() = default;
  /// Up to n (1 or more) tokens that may follow `text`, the tokens of the sequence so far; none where nothing is known.
  virtual std::vector<int32_t> propose(std::span<const int32_t> text, int n) = 0;
  /// Whether observe() is to be called.
  virtual bool wants_hidden() const { return false; }
  /// The target ran these tokens from position `first` on, hidden [n_tokens, d_model]. What was known of these positions
  /// and later ones is void.
  virtual void observe(std::span<const int32_t> /*tokens*/, int /*first*/, View2<const float> /*hidden*/) {}
};

/// What followed the longest earlier place that ends as the text does.
std::unique_ptr<Proposer> make_lookup_proposer();
/// The likeliest tokens by a smaller model, over a session of its own. `target` and `draft` must outlive the proposer.
/// Throws usage when the vocabularies differ.
std::unique_ptr<Proposer> make_draft_proposer(const Model& target, const Model& draft, const SessionOptions& options);
/// The head of `target` for the tokens after the next one (model/mtp.h), with a cache of its own; the session that
/// speculates must have read the whole text. `path`: as load_mtp_head() takes it. Throws Error.
std::unique_ptr<Proposer> make_mtp_proposer(const Model& target, const std::string& path,
                                            const SessionOptions& options);

/// How many tokens to propose, by how many proposals held and what steps took: the number that promises most tokens a
/// second. Where none pays, proposals end, and are tried again at growing distances.
class SpecDepth {
 public:
  explicit SpecDepth(int most) : most_(most) {}
  /// Proposals to ask for in the next step.
  int next() const;
  /// A step took so long, proposing included; of its proposals the first n_accepted held.
  void add(int n_proposed, int n_accepted, double seconds);

 private:
  int best() const;

  int most_;
  double plain_ = 0;    // seconds of a step without proposals; 0: not measured yet
  double extra_ = 0;    // seconds that a proposal adds
  double holds_ = 0.6;  // probability that a proposal holds whose predecessors do
  int n_plain_ = 0;     // steps since the last proposals
  int distance_ = 16;   // such steps in front of the next try
};

struct SpecReport {
  int64_t n_steps = 0, n_proposed = 0, n_accepted = 0;
  /// Tokens that a step gave.
  double tokens_per_step() const { return n_steps > 0 ? 1 + double(n_accepted) / double(n_steps) : 0; }
};

/// Proposals for one text at a time. Not thread-safe.
class Speculation {
 public:
  /// Where the text is: `outputs` has the logits after its last token.
  struct Target {
    Backend& backend;
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
  bool wants_hidden() const { return proposer_->wants_hidden(); }
  /// The target ran these tokens from position `first` on.
  void observe(std::span<const int32_t> tokens, int first, Outputs& outputs) {
    proposer_->observe(tokens, first, outputs.hidden());
  }
  const SpecReport& report() const { return report_; }

 private:
  std::unique_ptr<Proposer> proposer_;
  int most_;
  bool adaptive_;
  SpecReport report_;
};

}  // namespace ridge
