#include "chat/model.h"

namespace ridge::chat {

text::Json message_of(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

ChatModel::ChatModel(const Model& model, const std::string& chat_template) : model_(model), user_text_(model.engine()) {
  if (!model.info().has_tokenizer)
    throw_error(ErrorKind::usage, "{} has no tokenizer and cannot chat (ridge run --prompt-ids takes token ids)",
                model.info().path);
  template_ = serve::read_model_template(model.info().path, chat_template);
  if (const auto end = serve::find_turn_end(model.engine(), template_)) model.engine().add_end(*end);
}

void ChatModel::check() const {
  if (!problem().empty()) throw_error(ErrorKind::usage, "{} (--chat-template FILE|NAME gives another)", problem());
}

std::string ChatModel::prompt(const text::Json& messages, const text::PlainNames& names) const {
  check();
  if (has_template()) return rendered(messages, text::Json::object());
  text::Json named = messages;
  for (text::Json& message : named) {
    if (message["role"] == "user") message["role"] = names.user;
    if (message["role"] == "assistant") message["role"] = names.assistant;
  }
  return text::plain_prompt(named, false) + names.assistant + ":";
}

std::string ChatModel::transcript(const text::Json& messages) const {
  check();
  return rendered(messages, {{"add_generation_prompt", false}});
}

std::string ChatModel::rendered(const text::Json& messages, const text::Json& variables) const {
  Result<std::string> text = serve::render_conversation(model_.engine(), template_,
                                                        {.messages = user_text_.guarded(messages), .extra = variables});
  if (!text) throw Error(ErrorKind::usage, text.error().message);
  return std::move(*text);
}

std::vector<int32_t> ChatModel::tokens(const std::string& text) const {
  // A template writes the special tokens itself.
  return user_text_.tokens(text, !has_template(), has_template());
}

serve::AnswerForm ChatModel::answer_form(const std::string& prompt) const {
  return serve::answer_form(model_.engine(), template_, user_text_.released(prompt), nullptr);
}

std::vector<std::string> ChatModel::stops(const text::PlainNames& names) const {
  return has_template() ? std::vector<std::string>() : text::plain_stops(names);
}

}  // namespace ridge::chat
