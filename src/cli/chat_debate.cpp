// ridge chat --debate: two sides answer each other, each with a cache of its own.
#include <cstdio>
#include <filesystem>
#include <optional>

#include "cli/chat.h"
#include "cli/interrupt.h"
#include "cli/kv_auto.h"
#include "rank/mpi.h"

namespace ridge::cli {
namespace {

/// Tokens of an answer where --n-predict does not say: base models go on for ever.
constexpr int kDebateTokens = 128;
constexpr size_t kMaxNameBytes = 24;

struct Side {
  std::string name, persona, model_path;  ///< a persona, or a model of its own
};

/// "Ann: You love cats." has a name; a file or a directory is a model; all else is a persona.
Side parse_side(const std::string& text, const std::string& name) {
  std::error_code ignored;
  if (text.starts_with("synth:") || std::filesystem::exists(text, ignored))
    return {.name = std::filesystem::path(text).stem().string(), .model_path = text};
  const size_t colon = text.find(':');
  if (colon == text.npos || colon == 0 || colon > kMaxNameBytes) return {.name = name, .persona = text};
  return {.name = text.substr(0, colon),
          .persona = text.substr(std::min(text.find_first_not_of(' ', colon + 1), text.size()))};
}

/// What a side knows before the first turn. A base model reads a transcript, which says who talks.
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

struct Debater {
  Side side;
  const ChatModel* chat;
  std::optional<Speaker> speaker;
  text::Json messages;

  Debater(const Side& self, const Side& other, const ChatModel& model, const ChatFlags& flags)
      : side(self), chat(&model) {
    SpeakerOptions options = flags.speaker(model.model());
    if (options.generate.max_tokens < 0) options.generate.max_tokens = kDebateTokens;
    options.names = {.user = other.name, .assistant = self.name};
    speaker.emplace(model, options);
    messages = {message_of("system", introduction(self, other, flags.topic, model.has_template()))};
  }
};

/// One answer, which both sides remember, each from where it stands. False when Ctrl-C ended it.
bool take_turn(Debater& self, Debater& other, const ChatFlags& flags) {
  const bool json = flags.output.json;
  if (!json) fmt::print("{}: ", self.side.name);
  std::fflush(stdout);
  AnswerPrinter printer(!json);
  int n_dropped = 0;
  const GenerateResult result = self.speaker->say(self.messages, n_dropped, printer);
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
  if (n_dropped > 0 && !flags.output.quiet)
    fmt::print(stderr, "({}'s context was full: the {} oldest messages are forgotten)\n", self.side.name, n_dropped);
  return result.reason != StopReason::interrupted;
}

}  // namespace

int run_debate(const ChatFlags& flags) {
  check_kv_flags(flags.kv);  // refuses nonsense before a model is read
  Side a = parse_side(flags.debate[0], "A"), b = parse_side(flags.debate[1], "B");
  if (a.name == b.name) a.name += " 1", b.name += " 2";
  std::vector<Side> sides = {a, b};
  std::vector<std::unique_ptr<Model>> models;
  std::vector<std::unique_ptr<ChatModel>> chats;
  std::vector<const ChatModel*> chat_of;
  for (Side& side : sides) {
    if (side.model_path.empty()) side.model_path = flags.model.model;
    if (side.model_path.empty())
      bad_flag("--debate", fmt::format("{} has no model", side.name), "give -m MODEL, or a model in its place");
    if (chats.empty() || side.model_path != sides[0].model_path) {
      if (!chats.empty() && joined_ranks())
        bad_flag("--tp", "ranks share one model, and this debate has two", "give both sides one model");
      ModelFlags model = flags.model;
      model.model = side.model_path;
      models.push_back(std::make_unique<Model>(load_model(model)));
      chats.push_back(std::make_unique<ChatModel>(*models.back(), flags.model.chat_template));
    }
    chat_of.push_back(chats.back().get());
  }
  Debater first(sides[0], sides[1], *chat_of[0], flags), second(sides[1], sides[0], *chat_of[1], flags);
  if (first.chat->has_template())  // templates begin with a user's message
    first.messages.push_back(
        message_of("user", flags.topic.empty() ? "Please begin." : "Please begin: " + flags.topic));
  if (!flags.output.quiet)
    fmt::print(stderr, "models   {}, cache {}: {}\n", models.size(),
               flags.kv.is_auto() ? "auto" : kv_text(flags.kv.choice()), first.speaker->cache_cost());
  const SilentTyping silent;
  bool more = true;
  int turn = 0;
  for (; more && turn < flags.n_turns && !interrupted(); ++turn)
    more = turn % 2 == 0 ? take_turn(first, second, flags) : take_turn(second, first, flags);
  return exit_code_of(!interrupted() || (more && turn == flags.n_turns));
}

}  // namespace ridge::cli
