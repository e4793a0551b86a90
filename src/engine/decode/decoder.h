// The decode loop: texts that step together. A step proposes draft tokens, runs one forward pass over the last token
// and the draft tokens of every text, accepts those that the model samples itself, takes the others back, and learns
// what draft tokens cost and how many are accepted.
//
// On the CPU a row's bits do not depend on the rows that come with it (decision 0007), so a text is that of single
// tokens, greedy or sampled. On a device a row rounds otherwise in a larger step: where two tokens are about as likely
// the text may go on otherwise. A device samples where the logits are, and goes on by itself a few steps ahead of the
// host: with draft tokens of its own where texts have an MTP head, else with single tokens.
//
// A model with states has fewer draft tokens in a step: a slot keeps the states of the newest few lengths
// (op/cache/states.h), so that going back is counting fewer tokens there too.
#pragma once

#include <map>

#include "engine/decode/step_record.h"
#include "engine/decode/text.h"

namespace ridge {

/// At most n: as many draft tokens as fit behind the next token of the sequence and can be taken back exactly.
int most_proposals(const SequencePool& pool, SeqId seq, int n);

/// What one text has in a step.
struct DecodeRow {
  Text* text = nullptr;
  std::span<const int32_t> tokens = {};  ///< to run; none: the logits behind the text are there already
  bool is_prompt = false;                ///< tokens that were not sampled here: nothing is proposed behind them
  bool samples = true;                   ///< a token is sampled behind the last of them
  bool all_logits = false;               ///< whoever hears of the step wants the logits of all of them
  bool hidden = false;                   ///< whoever hears of the step reads Outputs::hidden() of all rows
};
/// The last token of a text, and what follows it.
inline DecodeRow next_row(Text& text) { return {.text = &text, .tokens = std::span(text.tokens).last(1)}; }

/// Hears of a step.
struct StepHooks {
  virtual ~StepHooks() = default;
  /// The forward pass has run, nothing is sampled yet.
  virtual void ran() {}
  /// Whether a device may go on by itself.
  virtual bool go_on() { return true; }
  /// The tokens of a step were handed on. A device that goes on by itself makes several.
  virtual void done(const StepRecord& /*record*/) {}

  PartClock clock;  ///< started with the planning
};

class Decoder {
 public:
  /// Texts are sequences of the pool. Both must outlive the decoder. Tokens below n_ids are sampled.
  Decoder(Backend& backend, SequencePool& pool, int n_ids);

  Outputs& outputs() { return *outputs_; }
  /// Goes on with another pool of the same backend.
  void change_pool(SequencePool& pool) { pool_ = &pool; }
  /// Runs one step of the rows, of texts that have not ended, and hands on what is sampled; on a device more steps
  /// while nothing changes and the hooks say so. A step has at most `most_tokens`; pages for the rows' own tokens can
  /// be had. A text whose sampling throws Error has ended with a failure; other exceptions, and those of the backend,
  /// are thrown.
  void step(std::span<const DecodeRow> rows, int most_tokens, StepHooks& hooks);
  /// Steps of one text until it has ended.
  void finish(Text& text);
  /// Runs the rows' tokens and samples nothing: pieces of prompts. Proposers observe them.
  void run(std::span<const DecodeRow> rows, LogitRows logits);

 private:
  using Clock = std::chrono::steady_clock;
  struct Row;
  struct Sampled;
  class Ahead;
  /// Steps that texts which decode go on for as if there were no proposers; 0 where there are none.
  static int paused_steps(std::span<const DecodeRow> rows);
  /// Adds draft tokens to the rows, as many as pay. False for a step that takes none.
  bool propose(std::span<Row> rows, int most_tokens);
  void reserve_proposals(Row& row);
  void run_rows(std::span<Row> rows, LogitRows logits);
  /// The tokens of every row of logits, sampled where they are.
  std::vector<int32_t> sample_on_device(std::span<const Row> rows);
  /// Samples behind every row, and takes back what does not hold.
  void take_rows(std::span<Row> rows, const Sampled& sampled, StepRecord& record, StepHooks& hooks);
  /// The row's first logits are row `at` of the step's.
  void take_row(Row& row, int64_t at, const Sampled& sampled, StepRecord& record, StepHooks& hooks);
  /// The row's next token; `holds`: it is the next draft token.
  std::optional<int32_t> sample_row(Row& row, int64_t at, const Sampled& sampled, bool& holds);
  int32_t keep_or_replace(Row& row, std::span<const float> logits, bool& holds);
  void take_back(std::span<const Row> rows);
  /// What a step says about cost and draft tokens; `seconds` that it took, without handing tokens on.
  void learn(std::span<const Row> rows, double seconds);
  /// Counts steps of a pause, in which `lost` steps were lost.
  static void count_paused(std::span<const Row> rows, int n_steps, double lost);
  /// A device samples, and goes on by itself with single tokens. False, and nothing happened, where it cannot. `record`
  /// is of the step that has run since `start`, n_paused as paused_steps().
  bool sample_ahead(std::span<Row> rows, int n_paused, StepRecord record, StepHooks& hooks, Clock::time_point start);
  /// A device goes on by itself, with draft tokens of its own for texts that have a head there and do not pause.
  /// False, and nothing happened, where it cannot.
  bool propose_ahead(std::span<const DecodeRow> rows, StepHooks& hooks);
  static bool take(Text& text, int32_t token);
  /// Takes a token that a device sampled; false where its logits are not finite.
  static bool take_sampled(Text& text, int32_t token);
  /// The text ends with the Error that is being handled.
  static void fail(Text& text);
  /// What a device's sampler looks back on; nothing without a penalty.
  static std::vector<int32_t> known_to_penalty(const Text& text);

  Backend& backend_;
  SequencePool* pool_;
  const int n_ids_;
  const std::unique_ptr<Outputs> outputs_;
  std::vector<int32_t> tokens_;       // of the step that runs
  std::map<size_t, SpecCost> costs_;  // of steps, by their texts
};

}  // namespace ridge
