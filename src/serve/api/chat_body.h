// Helpers of APIs whose requests become the body of a chat, as read_chat_request() takes it.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "serve/chat.h"

namespace ridge::serve {

/// Copies the fields of sampling and of this server's own that other APIs have as a chat has them.
void copy_shared_fields(const Json& from, Json& to);
/// Copies the members of these names that `from` has.
void copy_fields(const Json& from, std::span<const char* const> names, Json& to);

/// The text of a member that must be there. Throws ApiError that names `place`.
const std::string& need_text(const Json& object, const char* key, const std::string& place);

/// The text of a value: a text, or a list of blocks of one of these types, joined by line ends. Throws ApiError that
/// names `place` and the type of a block that is none of them.
std::string text_of_blocks(const Json& value, std::span<const std::string_view> types, const std::string& place);

/// The field `tools`, where it is there, as tools of a chat: each by chat_tool(tool, place). Throws ApiError.
void add_tools(const Json& body, Json (*chat_tool)(const Json& tool, const std::string& place), Json& chat);

/// A call of the model in the form of a chat.
Json chat_call(const std::string& id, const std::string& name, Json arguments);

/// Names of fields in a chat, and in the API that a body came from.
using FieldNames = std::span<const std::pair<std::string_view, std::string_view>>;

/// The error with the names of the API, whose names of paths are replaced too: the first one that fits.
ApiError with_names(ApiError error, FieldNames names);

/// Calls `read`; errors that it throws have the names of the API.
template <class Read>
auto reading_chat(FieldNames names, const Read& read) {
  try {
    return read();
  } catch (ApiError& error) {
    throw with_names(std::move(error), names);
  }
}

}  // namespace ridge::serve
