#include "chat/debate.h"

#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/interrupt.h"

namespace ridge::chat {
namespace {

/// Tokens of an answer where --n-predict does not say: base models go on for ever.
constexpr int kDebateTokens = 128;
constexpr size_t kMaxNameBytes = 24;

/// Introduction of a side before the first turn. A base model reads a transcript, which says who talks.
std::string introduction(const Side& self, const Side& other, const std::string& topic, bool has_template) {
  const std::string about = topic.empty() ? "" : fmt::format(" about {}", topic);
  if (has_template)
    return fmt::format("{}{}You are {} and debate with {}{}. Answer in a few sentences, as {} only.", self.persona,
                       self.persona.empty() ? "" : "\n", self.name, other.name, about, self.name);
  std::string text = fmt::format("{} and {} debate{}.", self.name, other.name, about);
  for (const Side* side : {&self, &other})
    if (!side->persona.empty()) text += fmt::format(" {}: {}", side->name, side->persona);
  return text;
}

/// A debater who talks.
struct Voice {
  Side side;
  Speaker speaker;
  text::Json messages;

  Voice(const Debater& self, const Side& other, const std::string& topic)
      : side(self.side),
        speaker(self.chat, options_of(self, other)),
        messages({message_of("system", introduction(self.side, other, topic, self.chat.has_template()))}) {}
  static SpeakerOptions options_of(const Debater& self, const Side& other) {
    SpeakerOptions options = self.speaker;
    if (options.generate.max_tokens < 0) options.generate.max_tokens = kDebateTokens;
    options.names = {.user = other.name, .assistant = self.side.name};
    return options;
  }
};

/// One answer, which both sides remember, each from where it stands. False when Ctrl-C ended it.
bool take_turn(Voice& self, Voice& other, const DebateOptions& options) {
  const bool json = options.json;
  if (!json) fmt::print("{}: ", self.side.name);
  std::fflush(stdout);
  AnswerPrinter printer(!json);
  int n_dropped = 0;
  const GenerateResult result = self.speaker.say(self.messages, n_dropped, printer);
  const text::Json message = printer.finish();
  const std::string said = message["content"];
  self.messages.push_back(message);
  other.messages.push_back(message_of("user", said));
  if (json)
    fmt::print("{}\n", text::Json({{"name", self.side.name},
                                   {"content", said},
                                   {"stopped", stop_reason_name(result.reason)},
                                   {"n_written", result.tokens.size()}})
                           .dump(-1, ' ', false, text::Json::error_handler_t::replace));
  else fmt::print("\n");
  std::fflush(stdout);
  if (n_dropped > 0 && !options.quiet)
    fmt::print(stderr, "({}'s context was full: the {} oldest messages are forgotten)\n", self.side.name, n_dropped);
  return result.reason != StopReason::interrupted;
}

}  // namespace

Side parse_side(const std::string& text, const std::string& name) {
  std::error_code ignored;
  if (text.starts_with("synth:") || std::filesystem::exists(text, ignored))
    return {.name = std::filesystem::path(text).stem().string(), .model_path = text};
  const size_t colon = text.find(':');
  if (colon == text.npos || colon == 0 || colon > kMaxNameBytes) return {.name = name, .persona = text};
  return {.name = text.substr(0, colon),
          .persona = text.substr(std::min(text.find_first_not_of(' ', colon + 1), text.size()))};
}

int debate(const Debater& first, const Debater& second, const DebateOptions& options) {
  Voice a(first, second.side, options.topic), b(second, first.side, options.topic);
  if (first.chat.has_template())  // templates begin with a user's message
    a.messages.push_back(
        message_of("user", options.topic.empty() ? "Please begin." : "Please begin: " + options.topic));
  if (!options.quiet) fmt::print(stderr, "{}", options.facts(a.speaker.session(), a.speaker.kv()));
  const SilentTyping silent;
  bool more = true;
  int turn = 0;
  for (; more && turn < options.n_turns && !interrupted(); ++turn)
    more = turn % 2 == 0 ? take_turn(a, b, options) : take_turn(b, a, options);
  return exit_code_of(!interrupted() || (more && turn == options.n_turns));
}

}  // namespace ridge::chat
