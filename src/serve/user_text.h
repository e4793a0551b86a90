// Text of people and of tools in a conversation: it stays text where it spells control tokens.
#pragma once

#include "engine/engine.h"
#include "serve/fields.h"

namespace ridge::serve {

/// Finds such text again behind a template: signs that nobody can guess stand around it meanwhile.
class UserText {
 public:
  /// `engine` has a tokenizer and must outlive it.
  explicit UserText(const Engine& engine);

  /// Messages with signs in the contents and names of all roles but the system's, the developer's and the assistant's.
  Json guarded(Json messages) const;
  /// A value with signs in all its texts and keys: tools, whose descriptions other programs wrote. It nests as deep as
  /// a body may.
  Json guarded_texts(Json value) const;
  /// A prompt of guarded messages without the signs.
  std::string released(const std::string& prompt) const;
  /// Such a prompt as tokens. What stands between signs becomes no control token. Throws as Engine::tokenize().
  std::vector<int32_t> tokens(const std::string& prompt, bool add_special, bool parse_special) const;

 private:
  std::string guarded_text(const std::string& text) const;
  struct Part {
    std::string text;
    bool plain;  ///< stood behind an opening sign
  };
  /// The prompt without its signs. Where a template cut a text, an opening sign holds up to the next sign, and a
  /// closing one without its opening one does nothing.
  std::vector<Part> parts(const std::string& prompt) const;

  const Engine& engine_;
  const std::string sign_;
};

}  // namespace ridge::serve
