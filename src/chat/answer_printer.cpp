#include "chat/answer_printer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "chat/model.h"
#include "chat/text_out.h"

namespace ridge::chat {

AnswerPrinter::AnswerPrinter(bool show, std::vector<std::string> stops)
    : stops_(std::move(stops)), show_(show), dim_(isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR")) {}

void AnswerPrinter::begin(const text::OutputParser::Options& options) {
  parser_.emplace(options);
  base_ = !options.reasoning;
}

/// Reasoning is dim on a terminal, and a blank line follows it.
void AnswerPrinter::print(std::string_view text, bool reasoning) {
  if (!show_ || text.empty()) return;
  if (is_reasoning_ && !reasoning) fmt::print("{}\n\n", dim_ ? "\033[0m" : "");
  if (!is_reasoning_ && reasoning && dim_) fmt::print("\033[2m");
  is_reasoning_ = reasoning;
  write_text(text);
}

void AnswerPrinter::add_content(std::string_view text) {
  // A plain prompt has the space itself.
  if (base_ && content_.empty()) text.remove_prefix(std::min(text.find_first_not_of(" \n"), text.size()));
  content_ += text;
  print(text, false);
}

bool AnswerPrinter::take(text::OutputDelta delta) {
  if (stop()) return false;  // what stood behind it
  reasoning_ += delta.reasoning;
  print(delta.reasoning, true);
  add_content(filter_.push(delta.content));
  for (const text::ToolCall& call : delta.calls) {
    if (!calls_.empty() || !content_.empty()) print("\n", false);
    print(fmt::format("{}({})", call.name, call.arguments), false);
    calls_.push_back(call);
  }
  return !stop();
}

bool AnswerPrinter::feed(std::string_view text) { return take(parser_->feed(text)); }
bool AnswerPrinter::feed_mark(std::string_view mark) { return take(parser_->feed_mark(mark)); }

text::Json AnswerPrinter::finish(bool end_line) {
  if (parser_ && take(parser_->finish())) add_content(filter_.finish());
  if (show_ && is_reasoning_ && dim_) fmt::print("\033[0m");
  if (show_ && end_line) write_text("\n");
  std::fflush(stdout);
  text::Json message = message_of("assistant", content_);
  if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
  for (const text::ToolCall& call : calls_)
    message["tool_calls"].push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return message;
}

}  // namespace ridge::chat
