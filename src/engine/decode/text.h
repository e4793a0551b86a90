// One text on its way: where it stands, how its tokens are sampled, who proposes for it and who hears of it.
#pragma once

#include <exception>

#include "engine/decode/proposer.h"
#include "engine/decode/spec_depth.h"
#include "engine/pool.h"

namespace ridge {

struct SpecReport {
  int64_t n_steps = 0, n_proposed = 0, n_accepted = 0;
  int64_t n_ahead = 0;  ///< steps that a device ran without the host between proposing and verifying
  /// Tokens that a step gave.
  double tokens_per_step() const { return n_steps > 0 ? 1 + double(n_accepted) / double(n_steps) : 0; }
};

/// Draft tokens of one text, or of one text after another. Not thread-safe.
class Speculation {
 public:
  /// At most `most` (1 to kMaxSpecDepth) draft tokens a step, fewer where fewer pay; all of them, always, unless
  /// adaptive. Throws usage out of range.
  Speculation(std::unique_ptr<Proposer> proposer, int most, bool adaptive = true);

  /// From here on every draft token counts as right with this probability, and the text is that of the draft tokens:
  /// for benchmarks of models whose text means nothing. Random tokens stand for those that the proposer does not know.
  void force(double share, uint64_t seed) { forced_ = share, forced_seed_ = seed, n_forced_ = 0; }
  /// From here on texts of a temperature above 0 take sampled tokens by rejection sampling: each with probability
  /// min(1, p / q), in place of a wrong one a token of what is left of p. Tokens have the same probabilities as without
  /// draft tokens; the text is another one.
  void reject() { rejects_ = true; }
  /// As Proposer::fill().
  void fill(std::span<const int32_t> text, uint64_t seed);
  const SpecReport& report() const { return report_; }

 private:
  friend class Decoder;
  /// Steps that the text goes on for without its proposer.
  int paused_steps() const { return adaptive_ ? depth_.paused_steps(proposer_->wants_hidden()) : 0; }
  /// Whether the proposer observes the text's next tokens. Steps of a pause run unobserved.
  bool listens() const { return proposer_->wants_hidden() && paused_steps() == 0; }
  /// Random tokens up to n, where proposals are forced.
  void fill_forced(std::vector<int32_t>& tokens, int n, int n_ids) const;
  /// Whether the next forced draft token counts as right.
  bool next_forced_holds() { return Rng(forced_seed_ + n_forced_++ * kSplitmixStep).uniform() < *forced_; }

  const std::unique_ptr<Proposer> proposer_;
  const int most_;
  const bool adaptive_;
  bool rejects_ = false;
  bool missed_ = false;  // the target ran tokens that the proposer did not see
  std::optional<double> forced_;
  uint64_t forced_seed_ = 0, n_forced_ = 0;  // draft tokens that chance has decided on
  SpecDepth depth_;
  SpecReport report_;
};

struct Text {
  SeqId seq{};
  std::vector<int32_t> tokens;  ///< what proposers go by and the penalty looks back on; each sampled token adds one
  SamplerOptions sampler;       ///< of the next token
  int n_left = 0;               ///< tokens that may still be sampled
  /// Samples a token from its logits [vocab_size] on the host; null: the sampler samples, where the logits are. Nothing
  /// ends the text. Errors end the text.
  std::function<std::optional<int32_t>(std::span<const float> logits)> pick;
  /// Hears of every token that was sampled; false ends the text.
  std::function<bool(int32_t token)> on_token;
  Speculation* speculation = nullptr;  ///< null: no draft tokens

  bool ended = false;
  std::exception_ptr failure;  ///< the Error that ended it
  std::optional<Rng> rng;      ///< of rejection sampling; made by the sampler's seed

  /// Tokens that the repeat penalty knows.
  std::span<const int32_t> recent() const {
    return std::span(tokens).last(std::min(tokens.size(), size_t(sampler.repeat_last_n)));
  }
};

/// Samples a token on the host from what `rule` leaves of the logits. `left` is a buffer.
int32_t sample_by_rule(TokenRule& rule, const Text& text, int n_ids, std::span<const float> logits,
                       std::vector<float>& left);

}  // namespace ridge
