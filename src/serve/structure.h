// Structured output: what requests ask of the form of their answers, as constraints on tokens.
#pragma once

#include <list>
#include <mutex>

#include "engine/engine.h"
#include "grammar/constraint.h"
#include "serve/answer_form.h"
#include "serve/fields.h"
#include "serve/staged_constraint.h"

namespace ridge::serve {

inline constexpr size_t kMaxGrammarBytes = size_t(64) << 20;

/// Compiled grammars of one model, kept for requests that ask for the same. Those used last are given up last: they
/// take max_bytes at most, but for the newest one. Free to share between threads.
class Structures {
 public:
  using Maker = std::function<std::unique_ptr<TokenRule>()>;
  explicit Structures(const Engine& engine, size_t max_bytes = kMaxGrammarBytes)
      : engine_(engine), max_bytes_(max_bytes) {}

  /// A constraint for every choice of a request with `response_format`, `grammar`, a `tool_choice` that wants a call,
  /// or a budget of its reasoning (`form`); null when it has none of them. A grammar begins behind the reasoning that
  /// `form` tells of, in harmony with the final channel. Throws ApiError.
  Maker read(const Json& body, const Json& tools, const AnswerForm& form);
  size_t kept_bytes();

 private:
  using Compiled = std::shared_ptr<const grammar::CompiledGrammar>;
  /// `key` tells grammars apart. Throws ApiError that names `field`.
  Compiled compile(const std::string& field, const std::string& key, bool prepare,
                   const std::function<Result<grammar::Grammar>()>& make);
  /// One call of one of the tools (of `only`, unless it is empty), written in the form's way.
  Maker call(const Json& tools, const std::string& only, const AnswerForm& form);
  Maker harmony_call(const Json& tools, const std::string& only, const AnswerForm& form);
  /// Any answer behind a reasoning with a budget; null where the model does not reason.
  Maker free_answer(const AnswerForm& form);
  /// `answer` behind the reasoning that comes or may come.
  Maker behind_reasoning(Stage answer, const AnswerForm& form);
  /// A message in the channel analysis or none, then one of the answers, by the words that its header has behind
  /// `<|channel|>`.
  Maker harmony(std::vector<std::pair<std::string, Stage>> answers, const AnswerForm& form);
  Stage words(const std::vector<std::pair<std::string, int>>& next, std::vector<int32_t> forced);
  void add_mark(std::string_view mark, const AnswerForm& form, Stage::Mark& to) const;
  std::vector<int32_t> tokens(std::string_view text) const;
  Maker maker(std::vector<Stage> stages, int first);
  std::shared_ptr<const grammar::Vocabulary> vocabulary();
  size_t held() const;
  void forget_oldest();

  const Engine& engine_;
  const size_t max_bytes_;
  std::mutex mutex_;  // guards all below
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  std::list<std::pair<std::string, Compiled>> recent_;  // the last used first
};

}  // namespace ridge::serve
