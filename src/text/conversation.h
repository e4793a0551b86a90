// Conversations in the form that a template can show. Templates differ: some have no place for a system message, for
// tools or for their results, some want contents as lists of parts. What a template does is found by rendering small
// conversations.
#pragma once

#include "text/chat_template.h"

namespace ridge::text {

/// Treatment of conversations by a template. The defaults are those of a template that shows everything.
struct TemplateHabits {
  bool system = true;                        ///< shows system messages
  bool tools = true;                         ///< says something about the tools of a request
  bool calls = true;                         ///< shows the calls of earlier answers
  bool results = true;                       ///< shows messages of the role tool behind such a call
  bool lone_results = true;                  ///< shows messages of the role tool behind an answer without calls
  bool text_arguments = false;               ///< arguments of calls are shown as JSON in a text only, not as objects
  bool needs_content = false;                ///< an answer without content must have an empty one
  std::vector<std::string> part_roles = {};  ///< roles whose contents are shown as lists of parts only

  bool takes_parts(std::string_view role) const;
};

/// `tokens`: the special tokens and the time that a rendering gets.
TemplateHabits habits_of(const ChatTemplate& chat_template, const ChatInput& tokens);
/// Those of plain_prompt().
TemplateHabits plain_habits();

/// Names that begin the lines of a plain prompt.
struct PlainNames {
  std::string user = "User", assistant = "Assistant";
};
/// Stop strings for the answer to a plain prompt: a base model goes on with the next line.
std::vector<std::string> plain_stops(const PlainNames& names = {});

/// Messages with contents as texts, in the form that a template of these habits shows. `tools`: functions that the
/// template does not describe; the messages do it then, and calls stand in contents as JSON. Null: there are none.
Json fit_messages(const TemplateHabits& habits, Json messages, const Json& tools);

}  // namespace ridge::text
