// A model that talks: messages to tokens, by its chat template or as plain text.
#pragma once

#include "engine/engine.h"
#include "serve/answer_form.h"
#include "serve/user_text.h"
#include "text/conversation.h"

namespace ridge::chat {

/// Knows a model, which must outlive it, and reads its template, or the one of --chat-template. A template that cannot
/// be read is a problem() of prompts. Throws usage for a model without a tokenizer.
class ChatModel {
 public:
  explicit ChatModel(const Model& model, const std::string& chat_template = {});

  const Model& model() const { return model_; }
  bool has_template() const { return !template_.plain() && template_.problem.empty(); }
  /// Why the model's template cannot be used, and so no prompt be made; empty: it can, or there is none.
  const std::string& problem() const { return template_.problem; }
  /// Throws usage where there is a problem.
  void check() const;
  /// The prompt whose continuation is the answer, guarded by UserText: for tokens() and answer_form(). Throws usage
  /// with the template's words when it refuses the messages.
  std::string prompt(const text::Json& messages, const text::PlainNames& names = {}) const;
  /// Whole messages, with nothing behind the last one. Throws as prompt().
  std::string transcript(const text::Json& messages) const;
  std::vector<int32_t> tokens(const std::string& text) const;
  /// How the answer to such a prompt is read.
  serve::AnswerForm answer_form(const std::string& prompt) const;
  /// Stop strings of an answer beside the model's own end token.
  std::vector<std::string> stops(const text::PlainNames& names = {}) const;

 private:
  std::string rendered(const text::Json& messages, const text::Json& variables) const;

  const Model& model_;
  serve::ModelTemplate template_;
  const serve::UserText user_text_;
};

text::Json message_of(const std::string& role, const std::string& content);

}  // namespace ridge::chat
