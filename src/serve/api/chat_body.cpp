#include "serve/api/chat_body.h"

#include <algorithm>

namespace ridge::serve {

void copy_shared_fields(const Json& from, Json& to) {
  constexpr const char* kShared[] = {"model",
                                     "stream",
                                     "temperature",
                                     "top_p",
                                     "top_k",
                                     "min_p",
                                     "seed",
                                     "repeat_penalty",
                                     "repeat_last_n",
                                     "presence_penalty",
                                     "frequency_penalty",
                                     "logit_bias",
                                     "min_tokens",
                                     "ignore_eos",
                                     "kv_quant",
                                     "speculative",
                                     "metadata"};
  copy_fields(from, kShared, to);
}

void add_tools(const Json& body, Json (*chat_tool)(const Json& tool, const std::string& place), Json& chat) {
  const Json* tools = Fields(body).find("tools");
  if (!tools) return;
  if (!tools->is_array()) refuse("tools", "not a list of tools");
  chat["tools"] = Json::array();
  for (size_t i = 0; i < tools->size(); ++i)
    chat["tools"].push_back(chat_tool((*tools)[i], fmt::format("tools[{}]", i)));
}

void copy_fields(const Json& from, std::span<const char* const> names, Json& to) {
  for (const char* name : names)
    if (const Json* value = Fields(from).find(name)) to[name] = *value;
}

const std::string& need_text(const Json& object, const char* key, const std::string& place) {
  const std::string* text = member_text(object, key);
  if (!text) refuse(fmt::format("{}.{}", place, key), "missing, or not a text");
  return *text;
}

std::string text_of_blocks(const Json& value, std::span<const std::string_view> types, const std::string& place) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) refuse(place, fmt::format("{} is neither a text nor a list of blocks", shown(value)));
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", place, i);
    if (!value[i].is_object()) refuse(at, "a block is an object");
    const std::string& type = need_text(value[i], "type", at);
    if (std::ranges::find(types, type) == types.end())
      refuse(at + ".type", fmt::format("{} is not supported here, only {}", shown(type), fmt::join(types, ", ")));
    if (i > 0) text += '\n';
    text += need_text(value[i], "text", at);
  }
  return text;
}

Json chat_call(const std::string& id, const std::string& name, Json arguments) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
}

ApiError with_names(ApiError error, FieldNames names) {
  for (const auto& [chat, own] : names) {
    const size_t at = error.param.find(chat), end = at + chat.size();
    if (at == std::string::npos || (at > 0 && error.param[at - 1] != '.')) continue;
    if (!chat.ends_with('.') && end < error.param.size() && error.param[end] != '.' && error.param[end] != '[')
      continue;
    const bool in_message = error.message.starts_with(error.param);
    if (in_message) error.message.replace(at, chat.size(), own);
    error.param.replace(at, chat.size(), own);
    return error;
  }
  return error;
}

}  // namespace ridge::serve
