// How the answers to one prompt are written: marks of reasoning, calls and messages, and which of them are tokens.
#pragma once

#include "serve/model_template.h"

namespace ridge::serve {

struct AnswerForm {
  text::OutputParser::Options output;
  std::vector<int32_t> marks;  ///< control tokens that the parser wants to hear of
  /// Marks with which the model may begin to reason: its template or its vocabulary has them, and the prompt neither
  /// ends with one nor says that there is nothing to reason about.
  std::vector<std::string_view> may_open;
  std::string_view close = {};  ///< the mark that ends this model's reasoning; empty: it does not reason, or in harmony
  int reasoning_budget = -1;    ///< the reasoning has so many tokens at most; -1: no limit
};

/// Form of the answer to a prompt that the template made: the template can therefore be used. `tools`: null where calls
/// are content.
AnswerForm answer_form(const Engine& engine, const ModelTemplate& chat_template, const std::string& prompt,
                       const Json& tools);

/// The token that a model's template writes behind an answer, where it is a control or user-defined token. Files may
/// name another end only.
std::optional<int32_t> find_turn_end(const Engine& engine, const ModelTemplate& chat_template);

}  // namespace ridge::serve
