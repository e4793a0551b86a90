// The messages and tools of a chat, checked: templates and grammars walk over them without asking again.
#pragma once

#include "serve/fields.h"

namespace ridge::serve {

/// `messages` as templates take them: objects with a role; lists of parts are their text, and the arguments of calls
/// are objects where they are such. Throws ApiError that names the place (messages[2].content).
Json read_messages(const Json& body);

/// `tools`, null where there are none. Every tool is a function with a name and parameters that are the schema of an
/// object: one without properties where the request has none. Throws ApiError.
Json read_tools(const Json& body);

/// Value of `tool_choice`.
struct ToolChoice {
  enum class Kind : uint8_t { automatic, none, required } kind = Kind::automatic;
  std::string name = {};  ///< the only function that may be called; empty: any
};
/// Throws ApiError for anything but none, auto, required and one function.
ToolChoice read_tool_choice(const Json& body);

}  // namespace ridge::serve
