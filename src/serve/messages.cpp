#include "serve/messages.h"

#include <fmt/format.h>

#include <algorithm>

namespace ridge::serve {
namespace {

constexpr size_t kMaxTools = 256;
constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

/// Whether `name` is 1 to `most` letters, digits, - and _, or one of the characters of `more`.
bool is_name(std::string_view name, size_t most, std::string_view more = "") {
  return !name.empty() && name.size() <= most && std::ranges::all_of(name, [&](char c) {
    return kNameCharacters.find(c) != kNameCharacters.npos || more.find(c) != more.npos;
  });
}

/// A member that is a text or missing.
void check_text(const Json& object, const char* key, const std::string& place) {
  const Json* value = member(object, key);
  if (value && !value->is_null() && !value->is_string())
    refuse(fmt::format("{}.{}", place, key), fmt::format("{} is not a text", shown(*value)));
}

std::string text_of_parts(const Json& parts, const std::string& place) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", place, i);
    if (!parts[i].is_object()) refuse(at, "a part is an object");
    if (!member_is(parts[i], "type", "text")) refuse(at + ".type", "only parts of type \"text\" are supported");
    const std::string* part = member_text(parts[i], "text");
    if (!part) refuse(at + ".text", "missing, or not a text");
    text += *part;
  }
  return text;
}

/// A call that the model made earlier: a text of JSON becomes the object in it. Other texts stay, models write such.
void read_call(Json& call, const std::string& place) {
  const Json* function = member(call, "function");
  if (!function || !function->is_object()) refuse(place, "a call is an object with a function");
  for (const char* key : {"id", "type"}) check_text(call, key, place);
  if (!member_text(*function, "name")) refuse(place + ".function.name", "missing, or not a text");
  const Json* arguments = member(*function, "arguments");
  Json read = Json::object();
  if (arguments && arguments->is_object()) return;
  if (arguments && arguments->is_string()) {
    const auto& text = arguments->get_ref<const std::string&>();
    Result<Json> parsed = parse_within<Json>(text);
    if (!parsed && parsed.error().kind == ErrorKind::usage)
      refuse(place + ".function.arguments", parsed.error().message);
    const bool blank = text.find_first_not_of(" \t\r\n") == text.npos;
    if (!blank && (!parsed || !parsed->is_object())) return;
    if (!blank) read = std::move(*parsed);
  } else if (arguments && !arguments->is_null()) {
    refuse(place + ".function.arguments", fmt::format("{} is neither a text nor an object", shown(*arguments)));
  }
  call["function"]["arguments"] = std::move(read);
}

void read_message(Json& message, const std::string& place) {
  if (!message.is_object() || !member_text(message, "role")) refuse(place, "every message is an object with a role");
  const std::string& role = *member_text(message, "role");
  if (!is_name(role, 32))
    refuse(place + ".role", fmt::format("{} is not a name of letters, digits, - and _", shown(message["role"])));
  if (role == "tool" && (!message.contains("content") || message["content"].is_null())) message["content"] = "";
  if (const auto content = message.find("content"); content != message.end() && content->is_array())
    *content = text_of_parts(*content, place + ".content");
  for (const char* key : {"content", "reasoning_content", "name", "tool_call_id"}) check_text(message, key, place);
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return;
  if (!calls->is_array()) refuse(place + ".tool_calls", fmt::format("{} is not a list of calls", shown(*calls)));
  for (size_t i = 0; i < calls->size(); ++i) read_call((*calls)[i], fmt::format("{}.tool_calls[{}]", place, i));
}

void read_tool(Json& tool, const std::string& place) {
  constexpr const char* kForm =
      "every tool is {\"type\": \"function\", \"function\": {\"name\": ..., \"parameters\": ...}}";
  if (!tool.is_object()) refuse(place, kForm);
  if (!member_is(tool, "type", "function")) refuse(place + ".type", kForm);
  if (const Json* found = member(tool, "function"); !found || !found->is_object()) refuse(place + ".function", kForm);
  Json& function = tool["function"];
  const std::string* name = member_text(function, "name");
  // Harmony ends a function's name at a blank, other forms write it between quotes.
  if (!name || !is_name(*name, 64, ".:"))
    refuse(place + ".function.name", "missing, or not 1 to 64 letters, digits, and characters of _ . : -");
  check_text(function, "description", place + ".function");
  Fields(function, place + ".function.").flag("strict");
  const Json* parameters = member(function, "parameters");
  if (parameters && !parameters->is_null() && !parameters->is_object())
    refuse(place + ".function.parameters", fmt::format("{} is not the schema of an object", shown(*parameters)));
  if (!parameters || parameters->is_null() || parameters->empty())
    function["parameters"] = {{"type", "object"}, {"properties", Json::object()}};
  else if (const Json* of = member(*parameters, "type"); of && *of != "object")
    refuse(place + ".function.parameters.type", fmt::format("{} is not \"object\"", shown(*of)));
}

}  // namespace

Json read_messages(const Json& body) {
  const Json* found = member(body, "messages");
  if (!found || !found->is_array() || found->empty()) refuse("messages", "not a list of one message or more");
  Json messages = *found;
  for (size_t i = 0; i < messages.size(); ++i) read_message(messages[i], fmt::format("messages[{}]", i));
  return messages;
}

Json read_tools(const Json& body) {
  const Json* found = Fields(body).find("tools");
  if (!found) return nullptr;
  if (!found->is_array() || found->size() > kMaxTools)
    refuse("tools", fmt::format("not a list of at most {} tools", kMaxTools));
  if (found->empty()) return nullptr;
  Json tools = *found;
  for (size_t i = 0; i < tools.size(); ++i) read_tool(tools[i], fmt::format("tools[{}]", i));
  return tools;
}

ToolChoice read_tool_choice(const Json& body) {
  using Kind = ToolChoice::Kind;
  const Json* choice = Fields(body).find("tool_choice");
  if (!choice || *choice == "auto") return {};
  if (*choice == "none") return {Kind::none};
  if (*choice == "required") return {Kind::required};
  const Json* function = member_is(*choice, "type", "function") ? member(*choice, "function") : nullptr;
  const std::string* name = function ? member_text(*function, "name") : nullptr;
  if (!name) refuse("tool_choice", "none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": ...}}");
  return {Kind::required, *name};
}

}  // namespace ridge::serve
