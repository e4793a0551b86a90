#include "serve/user_text.h"

#include <algorithm>
#include <random>
#include <string_view>

#include "base/work_limit.h"

namespace ridge::serve {
namespace {

/// Digits, which no template escapes or changes.
std::string random_sign() {
  std::random_device random;
  return fmt::format("{:010}{:010}{:010}{:010}", random(), random(), random(), random());
}
constexpr char kOpens = '1', kCloses = '2';  // behind a sign

bool is_of_the_application(const Json& message) {
  const auto role = message.find("role");
  return role != message.end() && (*role == "system" || *role == "developer" || *role == "assistant");
}

/// Marks of conversations, which some vocabularies call user-defined: a tokenizer finds those in any text.
bool is_mark(const io::Tokenizer& tokenizer, int32_t id, std::string_view piece) {
  constexpr std::string_view kOthers[] = {"<think>", "</think>", "[INST]", "[/INST]", "<start_of_turn>"};
  return tokenizer.is_control(id) || tokenizer.is_end(id) || (piece.starts_with("<|") && piece.ends_with("|>")) ||
         std::ranges::find(kOthers, piece) != std::end(kOthers);
}

}  // namespace

UserText::UserText(const Engine& engine) : engine_(engine), sign_(random_sign()) {}

std::string UserText::guarded_text(const std::string& text) const {
  const io::Tokenizer& tokenizer = engine_.tokenizer();
  std::string made;
  size_t done = 0;
  for (const int32_t id : tokenizer.encode(text, false, true)) {
    const std::string piece = tokenizer.piece(id, true);
    if (!is_mark(tokenizer, id, piece)) continue;
    WorkLimit::check();
    const size_t at = text.find(piece, done);
    if (at == text.npos) continue;  // it was found in normalised text
    made += text.substr(done, at - done) + sign_ + kOpens + piece + sign_ + kCloses;
    done = at + piece.size();
  }
  return made + text.substr(done);
}

Json UserText::guarded(Json messages) const {
  for (Json& message : messages) {
    if (!message.is_object() || is_of_the_application(message)) continue;
    for (const char* key : {"content", "name", "tool_call_id"})
      if (const auto text = message.find(key); text != message.end()) *text = guarded_texts(std::move(*text));
  }
  return messages;
}

Json UserText::guarded_texts(Json value) const {
  if (value.is_string()) return guarded_text(value.get_ref<const std::string&>());
  if (value.is_array())
    for (Json& one : value) one = guarded_texts(std::move(one));
  if (!value.is_object()) return value;
  Json made = Json::object();
  for (auto& [key, one] : value.items()) made.emplace(guarded_text(key), guarded_texts(one));
  return made;
}

std::vector<UserText::Part> UserText::parts(const std::string& prompt) const {
  std::vector<Part> made;
  bool plain = false;
  for (size_t done = 0; done <= prompt.size();) {
    const size_t at = std::min(prompt.find(sign_, done), prompt.size());
    made.push_back({prompt.substr(done, at - done), plain});
    const size_t behind = at + sign_.size();
    if (behind >= prompt.size()) break;
    plain = prompt[behind] == kOpens;
    done = behind + 1;
  }
  return made;
}

std::string UserText::released(const std::string& prompt) const {
  std::string made;
  for (const Part& part : parts(prompt)) made += part.text;
  return made;
}

std::vector<int32_t> UserText::tokens(const std::string& prompt, bool add_special, bool parse_special) const {
  const std::vector<Part> all = parts(prompt);
  if (all.size() == 1) return engine_.tokenize(prompt, add_special, parse_special);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [text, plain] = all[i];
    std::vector<int32_t> more = engine_.tokenize(text, add_special && i == 0, parse_special && !plain);
    if (plain && more.size() == 1 && text.size() > 1) {  // a user-defined token: in two parts it is text
      more = engine_.tokenize(text.substr(0, 1), false, false);
      const std::vector<int32_t> rest = engine_.tokenize(text.substr(1), false, false);
      more.insert(more.end(), rest.begin(), rest.end());
    }
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  return tokens;
}

}  // namespace ridge::serve
