// A conversation over stdin and stdout: messages, answers, and commands that begin with a slash.
#pragma once

#include "chat/speaker.h"

namespace ridge::chat {

/// Start-up lines about a session, for stderr.
using Facts = std::function<std::string(const Session& session, const KvChoice& kv)>;

struct ConversationOptions {
  SpeakerOptions speaker;
  std::string system;         ///< the first message; empty: none
  std::string spec_type;      ///< name of speaker.speculation, for /stats
  bool json = false;          ///< answers are lines of JSON on stdout
  bool quiet = false;         ///< no notes on stderr
  bool keeps_history = true;  ///< of the lines that were typed on a terminal
  Facts facts = [](const Session&, const KvChoice&) { return std::string(); };
};

/// Talks until the input ends, /quit or a signal. Returns the exit code. `chat` has passed check(). Throws Error.
int converse(const ChatModel& chat, const ConversationOptions& options);

}  // namespace ridge::chat
