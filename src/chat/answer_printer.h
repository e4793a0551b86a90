// Prints an answer to a chat while it is written: reasoning, content and calls apart.
#pragma once

#include <optional>

#include "engine/decode/token_stream.h"
#include "text/tool_calls.h"

namespace ridge::chat {

class AnswerPrinter {
 public:
  /// Without `show` it only collects. The content ends before the first of `stops`; reasoning and calls have none.
  explicit AnswerPrinter(bool show, std::vector<std::string> stops = {});
  AnswerPrinter(const AnswerPrinter&) = delete;
  AnswerPrinter& operator=(const AnswerPrinter&) = delete;

  /// How the answer is read: before anything is fed.
  void begin(const text::OutputParser::Options& options);
  /// Both are false once a stop string has come.
  bool feed(std::string_view text);
  bool feed_mark(std::string_view mark);
  /// The stop string that ended the content; null: none.
  const std::string* stop() const { return filter_.matched(); }
  /// The message for the conversation: content, and reasoning_content and tool_calls where there are any.
  text::Json finish(bool end_line = true);

 private:
  bool take(text::OutputDelta delta);
  void add_content(std::string_view text);
  void print(std::string_view text, bool reasoning);

  std::optional<text::OutputParser> parser_;
  std::string content_, reasoning_;
  std::vector<text::ToolCall> calls_;
  const std::vector<std::string> stops_;
  StopFilter filter_{stops_};
  const bool show_, dim_;
  bool base_ = false, is_reasoning_ = false;
};

}  // namespace ridge::chat
