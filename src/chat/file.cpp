#include "chat/file.h"

#include "io/json.h"
#include "io/mapped_file.h"
#include "io/pending_file.h"

namespace ridge::chat {
namespace {

constexpr int kChatVersion = 1;
constexpr uint64_t kMaxChatBytes = uint64_t(64) << 20;

}  // namespace

Status save_chat(const SavedChat& chat, const std::string& path) {
  const text::Json json = {
      {"version", kChatVersion}, {"model", chat.model}, {"kv", chat.kv}, {"messages", chat.messages}};
  io::PendingFile file(path);
  RIDGE_TRY_STATUS(file.create());
  RIDGE_TRY_STATUS(file.write(json.dump(2, ' ', false, text::Json::error_handler_t::replace) + "\n"));
  return file.commit();
}

Result<SavedChat> load_chat(const std::string& path) {
  RIDGE_TRY(const std::string bytes, io::read_text_file(path, kMaxChatBytes));
  RIDGE_TRY(const io::Json json, io::parse_json(bytes, path));
  const auto text_of = [](const io::Json& object, const char* name) {
    const auto at = object.find(name);
    return at != object.end() && at->is_string() ? std::optional(at->get<std::string>()) : std::nullopt;
  };
  if (!json.is_object() || json.value("version", io::Json()) != kChatVersion || !json.contains("messages") ||
      !json["messages"].is_array())
    return bad_file("{}: not a conversation that /save wrote", path);
  SavedChat chat{.model = text_of(json, "model").value_or(""), .kv = text_of(json, "kv").value_or("")};
  for (const io::Json& message : json["messages"]) {
    const auto role = message.is_object() ? text_of(message, "role") : std::nullopt;
    const auto content = message.is_object() ? text_of(message, "content") : std::nullopt;
    if (!role || !content || (*role != "user" && *role != "assistant" && (*role != "system" || !chat.messages.empty())))
      return bad_file("{}: message {} has no text, or a role that is not its", path, chat.messages.size() + 1);
    chat.messages.push_back(message_of(*role, *content));
    if (const auto reasoning = text_of(message, "reasoning_content"))
      chat.messages.back()["reasoning_content"] = *reasoning;
    if (const auto calls = message.find("tool_calls"); calls != message.end() && calls->is_array())
      chat.messages.back()["tool_calls"] = text::Json::parse(calls->dump());
  }
  return chat;
}

}  // namespace ridge::chat
