// Chat templates: from messages to the text of a prompt, as the model's authors wrote it down in Jinja
// (docs/templates.md).
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ordered_json.h"
#include "base/result.h"
#include "text/jinja_value.h"

namespace ridge::text {

using Json = OrderedJson;

/// Input that one prompt is made from.
struct ChatInput {
  Json messages = Json::array();  ///< objects in OpenAI's form
  Json tools = nullptr;           ///< null: the request has none
  Json extra = Json::object();    ///< more variables, by name: enable_thinking, documents, other special tokens, ...
  bool add_generation_prompt = true;  ///< end with the begin of the assistant's message
  std::optional<std::string> bos_token, eos_token;
  std::tm now = {};  ///< local time for strftime_now; only the date and the time of day are read
};

/// A parsed template. It does not change: any number of threads may render it at the same time.
class ChatTemplate {
 public:
  /// A failure says what is wrong, with line and column (columns count bytes).
  static Result<ChatTemplate> parse(std::string_view source);

  /// The prompt, as transformers' apply_chat_template() makes it: null values of messages are left out, and
  /// `reasoning_content` is also called `thinking`. What raise_exception() says becomes a failure of kind usage
  /// (refused_by_template()), everything else one of kind bad_file with line and column.
  Result<std::string> render(const ChatInput& input, const jinja::Limits& limits = {}) const;

  const std::string& source() const { return *source_; }

 private:
  std::shared_ptr<const std::string> source_;
  std::shared_ptr<const jinja::Node> root_;
};

/// Did the template itself refuse the messages? The failure's message is then the template's, word for word.
inline bool refused_by_template(const Failure& failure) { return failure.kind == ErrorKind::usage; }

/// A prompt for base models, which have no template: "Role: text" line by line. Texts of parts are joined; other parts,
/// tools and calls are left out.
std::string plain_prompt(const Json& messages, bool add_generation_prompt);

}  // namespace ridge::text
