// Prints an answer to a chat while it is written: reasoning, content and calls apart.
#pragma once

#include <optional>

#include "text/tool_calls.h"

namespace ridge::chat {

class AnswerPrinter {
 public:
  /// Without `show` it only collects.
  explicit AnswerPrinter(bool show);

  /// How the answer is read: before anything is fed.
  void begin(const text::OutputParser::Options& options);
  void feed(std::string_view text);
  void feed_mark(std::string_view mark);
  /// The message for the conversation: content, and reasoning_content and tool_calls where there are any.
  text::Json finish(bool end_line = true);

 private:
  void take(const text::OutputDelta& delta);
  void print(std::string_view text, bool reasoning);

  std::optional<text::OutputParser> parser_;
  std::string content_, reasoning_;
  std::vector<text::ToolCall> calls_;
  const bool show_, dim_;
  bool base_ = false, is_reasoning_ = false;
};

}  // namespace ridge::chat
