// Structured output: what requests ask of the form of their answers, as constraints on tokens.
#pragma once

#include <list>
#include <mutex>

#include "engine/engine.h"
#include "grammar/constraint.h"
#include "serve/fields.h"
#include "serve/request.h"
#include "text/tool_calls.h"

namespace ridge::serve {

/// Compiled grammars of one model, the newest ones kept. Free to share between threads.
class Structures {
 public:
  using Maker = std::function<std::unique_ptr<Constraint>()>;
  explicit Structures(const Engine& engine) : engine_(engine) {}

  /// A constraint for every choice of a request with `response_format`, `grammar`, or a `tool_choice` that wants a call;
  /// null when it has none of them. Throws ApiError.
  Maker read(const Json& body, const Json& tools, text::ToolFormat format);

 private:
  using Compiled = std::shared_ptr<const grammar::CompiledGrammar>;
  /// `key` tells grammars apart. Throws ApiError that names `field`.
  Maker compile(const std::string& field, const std::string& key,
                const std::function<Result<grammar::Grammar>()>& make);
  std::shared_ptr<const grammar::Vocabulary> vocabulary();

  const Engine& engine_;
  std::mutex mutex_;  // guards all below
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  std::list<std::pair<std::string, Compiled>> recent_;  // the last used first
};

}  // namespace ridge::serve
