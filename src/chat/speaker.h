// Who answers in a conversation: a session that keeps of its cache what the next prompt has in common with it.
#pragma once

#include "chat/answer_printer.h"
#include "chat/model.h"
#include "chat/reading.h"
#include "engine/decode/text.h"
#include "engine/kv_choice.h"

namespace ridge::chat {

struct SpeakerOptions {
  KvChoice kv;
  int n_ctx = 0, n_ubatch = 0;
  bool shows_progress = false;  ///< of reading a prompt, on stderr
  GenerateOptions generate;     ///< stops of the model's own are added
  text::PlainNames names = {};
  Speculation* speculation = nullptr;  ///< null: none; must outlive the speaker
  /// Makes the rule for answers of a form; null: any text.
  std::function<std::unique_ptr<TokenRule>(const serve::AnswerForm&)> structure = nullptr;
};

class Speaker {
 public:
  /// `chat` must outlive it. Throws Error.
  Speaker(const ChatModel& chat, const SpeakerOptions& options);

  /// The next message of the assistant. Where the messages leave no room in the context, the oldest turns after the
  /// system prompt are dropped from them first, until a quarter is free; `n_dropped` counts messages. Throws usage when
  /// the last turn alone does not fit or the template refuses the messages; the cache is then as it was.
  /// `printer` gets the answer, once the prompt says how it is read.
  GenerateResult say(text::Json& messages, int& n_dropped, AnswerPrinter& printer);

  /// Moves the tokens held to a cache of other formats. Throws Error; the cache is then as it was.
  void change_cache(const KvChoice& kv);

  const ChatModel& chat() const { return chat_; }
  const Session& session() const { return *session_; }
  const KvChoice& kv() const { return options_.kv; }
  std::string cache_cost() const;

 private:
  std::vector<int32_t> fit(text::Json& messages, int& n_dropped);
  ReadingOptions reading() const { return {options_.n_ubatch, options_.shows_progress}; }
  /// Goes back to what the cache and the prompt have in common; returns how many tokens that are.
  int keep_common(std::span<const int32_t> prompt);

  const ChatModel& chat_;
  SpeakerOptions options_;
  std::unique_ptr<Session> session_;  ///< sessions move, but are not assigned
  std::vector<int32_t> held_;         ///< the tokens in the cache
  serve::AnswerForm form_;            ///< of the answer to the last prompt
};

/// "12 bytes/token (f16: 20, ratio 1.67)"
std::string cache_cost(const ModelInfo& info, const Session& session);

/// Drops the oldest turn after the system prompt: a user's message and what follows it up to the next one. Returns how
/// many messages went; 0 where there is one turn only.
int drop_oldest_turn(text::Json& messages);

}  // namespace ridge::chat
