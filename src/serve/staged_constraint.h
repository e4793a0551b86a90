// A grammar that rules a part of an answer, or a limit of its reasoning: what stands in front of the part comes in
// stages.
//
//     reasoning   may_open -> reasoning -> answer
//     harmony     words (analysis or final) -> reasoning -> answer
#pragma once

#include <deque>

#include "grammar/constraint.h"
#include "io/tokenizer.h"
#include "serve/request.h"

namespace ridge::serve {

/// One part of an answer. Its tokens `forced` come first, whatever is likely.
struct Stage {
  enum class Kind : uint8_t {
    may_open,   ///< the model opens its reasoning (stage 1) with one of `marks`, or begins with stage `next`, an answer
    reasoning,  ///< any text up to one of `marks`, which stage `next` follows; no end token
    words,      ///< one of `words`, by `grammar`; each says which stage is next
    answer,     ///< a text of `grammar`, and the end
    free,       ///< any text, and the end
  };
  struct Mark {
    std::vector<std::string> texts;
    std::vector<int32_t> tokens;  ///< control tokens
  };
  Kind kind = Kind::answer;
  std::vector<int32_t> forced = {};
  Mark marks = {};
  std::vector<int32_t> barred = {};   ///< reasoning: tokens that may not come
  int budget = -1;                    ///< reasoning: it has so many tokens at most; -1: no limit
  std::vector<int32_t> closing = {};  ///< reasoning: tokens that end one which has used up its budget
  std::vector<std::pair<std::string, int>> words = {};
  std::shared_ptr<const grammar::CompiledGrammar> grammar = nullptr;
  int next = 0;
};

/// What all choices of a request share.
struct StagePlan {
  std::vector<Stage> stages;
  int first = 0;  ///< the stage that the answer begins with
  std::shared_ptr<const grammar::Vocabulary> vocabulary;
  /// Tokens of line ends: one may stand between the end of the reasoning and the answer, and in front of the reasoning.
  std::vector<int32_t> line_ends;
};

/// Follows a plan. A token that ends the reasoning and goes on with what the answer may not begin with is cut: tokens
/// that spell its part up to the mark take its place.
class StagedConstraint final : public TokenRule {
 public:
  explicit StagedConstraint(std::shared_ptr<const StagePlan> plan);

  void mask(std::span<float> logits, int tokens_left) override;
  int32_t accept(int32_t token) override;
  bool complete() const override;

 private:
  const Stage& stage() const { return plan_->stages[size_t(stage_)]; }
  /// Whether any text may follow this stage.
  bool goes_on_freely() const { return plan_->stages[size_t(stage().next)].kind == Stage::Kind::free; }
  void enter(int stage);
  /// Masks by the grammar, but for these tokens.
  void mask_but(std::span<float> logits, int tokens_left, std::span<const int32_t> free);
  std::vector<int32_t> openers() const;
  int32_t accept_opening(int32_t token);
  int32_t accept_reasoning(int32_t token);
  void end_used_up_reasoning();
  void accept_word(int32_t token);
  void accept_answer(int32_t token);

  const std::shared_ptr<const StagePlan> plan_;
  int stage_ = 0;
  std::deque<int32_t> forced_;
  int n_reasoned_ = 0;                        ///< tokens of the reasoning so far
  std::optional<grammar::Constraint> place_;  ///< in the grammar of the stage
  bool grammar_goes_on_ = true;               ///< may_open: what was written can also begin the answer
  bool line_end_ = false;                     ///< one may come
  std::string text_;                          ///< what marks and words are looked for in
};

}  // namespace ridge::serve
