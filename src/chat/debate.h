// Two sides that answer each other, each with a cache of its own.
#pragma once

#include "chat/conversation.h"

namespace ridge::chat {

struct Side {
  std::string name, persona, model_path;  ///< a persona, or a model of its own
};
/// "Ann: You love cats." has a name; a file or a directory is a model; all else is a persona of `name`.
Side parse_side(const std::string& text, const std::string& name);

/// A side, the model that speaks for it, and how; `chat` must outlive the debate.
struct Debater {
  Side side;
  const ChatModel& chat;
  SpeakerOptions speaker;
};
struct DebateOptions {
  std::string topic;
  int n_turns = 0;                                                              ///< answers of both sides together
  bool json = false;                                                            ///< answers are lines of JSON on stdout
  bool quiet = false;                                                           ///< no notes on stderr
  Facts facts = [](const Session&, const KvChoice&) { return std::string(); };  ///< of the first side
};

/// Debates until all turns are taken or a signal comes. Returns the exit code. Throws Error.
int debate(const Debater& first, const Debater& second, const DebateOptions& options);

}  // namespace ridge::chat
