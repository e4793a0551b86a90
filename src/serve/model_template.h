// The chat template of a model: which one serves, and how conversations go through it.
#pragma once

#include <mutex>

#include "engine/engine.h"
#include "io/chat_templates.h"
#include "serve/fields.h"
#include "text/conversation.h"
#include "text/tool_calls.h"

namespace ridge::serve {

/// A template that was parsed and tried.
struct PreparedTemplate {
  text::ChatTemplate parsed;
  text::TemplateHabits habits;
  text::ToolFormat format = text::ToolFormat::none;  ///< in which the model writes calls where it is told of tools
};

/// The templates of a model, as its file or directory has them or as a person chose.
struct ModelTemplate {
  std::vector<io::NamedTemplate> named;  ///< empty: prompts are plain text
  std::string problem = {};              ///< why there is no template although there is one: chats fail and say this

  bool plain() const { return named.empty() && problem.empty(); }
  /// "tool_use" for requests with tools if there is one, else "default", else the only one. Failures say what is wrong
  /// with the template; they are the same each time.
  Result<const PreparedTemplate*> prepared(const Engine& engine, bool with_tools) const;

  struct Cache {
    std::mutex mutex;
    std::map<std::string, Result<PreparedTemplate>> by_name;
  };
  std::shared_ptr<Cache> cache = std::make_shared<Cache>();
};

/// `choice` (--chat-template): the name of a template of the model or of a standard one, else a file; empty: the
/// model's own. Throws usage for a choice that is none of these. Templates that cannot be read do not throw: see
/// `problem`.
ModelTemplate read_model_template(const std::string& model_path, const std::string& choice = {});

/// A conversation with tools and more variables of the template.
struct Conversation {
  Json messages;  ///< contents are texts
  Json tools = nullptr;
  Json extra = Json::object();
};
/// The prompt, which ends with the begin of the answer: by the template, or as plain text where there is none. Tools
/// that the template does not know are described by a message. A failure says what the template says.
Result<std::string> render_conversation(const Engine& engine, const ModelTemplate& chat_template,
                                        const Conversation& conversation);
/// How the answer to a request with tools writes calls. Failures are those of render_conversation().
Result<text::ToolFormat> format_of_calls(const Engine& engine, const ModelTemplate& chat_template);

}  // namespace ridge::serve
