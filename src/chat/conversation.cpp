#include "chat/conversation.h"

#include <cstdio>

#include "base/closest.h"
#include "base/interrupt.h"
#include "chat/file.h"
#include "chat/line_reader.h"
#include "chat/text_out.h"
#include "rank/mpi.h"

namespace ridge::chat {
namespace {

class Conversation {
 public:
  Conversation(const ChatModel& chat, const ConversationOptions& options)
      : options_(options),
        chat_(chat),
        speaker_(chat, options.speaker),
        reader_(options.keeps_history ? history_path() : "", command_names()) {
    set_system(options.system);
  }

  int run();

 private:
  struct Row {
    std::string_view name, argument, help;
    void (Conversation::*action)(const std::string& argument);
  };
  static std::span<const Row> rows();
  static std::vector<std::string> command_names();

  /// Prints the answer of a command; beside JSON on stdout it goes to stderr.
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    fmt::print(options_.json ? stderr : stdout, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    std::fflush(stdout);
    if (!options_.quiet) fmt::print(stderr, format, std::forward<Args>(args)...);
  }

  void set_system(const std::string& text);
  bool has_system() const { return !messages_.empty() && messages_.front()["role"] == "system"; }
  static bool is_command(const std::string& message);
  void command(const std::string& line);
  void answer_messages();
  void print_json(const text::Json& message, const GenerateResult& result);

  void help(const std::string&);
  void kv(const std::string& format);
  void system(const std::string& text);
  void regenerate(const std::string&);
  void save(const std::string& path);
  void load(const std::string& path);
  void stats(const std::string&);
  void reset(const std::string&);
  void undo(const std::string&);
  void quit(const std::string&) { done_ = true; }

  const ConversationOptions& options_;
  const ChatModel& chat_;
  Speaker speaker_;
  LineReader reader_;
  text::Json messages_ = text::Json::array();
  bool done_ = false;
  int n_read_ = 0, n_written_ = 0, n_decoded_ = 0;
  double read_seconds_ = 0, decode_seconds_ = 0;
};

std::span<const Conversation::Row> Conversation::rows() {
  using C = Conversation;
  static constexpr Row kRows[] = {
      {"/help", "", "this list", &C::help},
      {"/kv", "[FORMAT]", "show the cache's formats, or read the conversation into another cache", &C::kv},
      {"/system", "[TEXT]", "show or set the system prompt; - removes it", &C::system},
      {"/regen", "", "answer the last message again", &C::regenerate},
      {"/undo", "", "forget the last message and its answer", &C::undo},
      {"/reset", "", "forget all messages but the system prompt", &C::reset},
      {"/save", "FILE", "write the conversation as JSON", &C::save},
      {"/load", "FILE", "go on with a saved conversation", &C::load},
      {"/stats", "", "tokens, speed, bytes of the cache", &C::stats},
      {"/quit", "", "leave (Ctrl-D)", &C::quit},
  };
  return kRows;
}

std::vector<std::string> Conversation::command_names() {
  std::vector<std::string> names;
  for (const Row& row : rows()) names.emplace_back(row.name);
  return names;
}

/// Lines that are no command and begin with a slash, of a path for example, may be pasted among others.
bool Conversation::is_command(const std::string& message) {
  if (!message.starts_with('/')) return false;
  const std::string name = message.substr(0, message.find_first_of(" \n"));
  return message.find('\n') == message.npos || std::ranges::find(rows(), name, &Row::name) != rows().end();
}

void Conversation::help(const std::string&) {
  for (const Row& row : rows()) say("  {:<16} {}\n", fmt::format("{} {}", row.name, row.argument), row.help);
  say("A line that ends in \\ goes on in the next one; \"\"\" begins and ends a block of lines. What is pasted is one\n"
      "message. Tab completes commands, Up brings messages back. Ctrl-C stops an answer, what was written stays.\n");
}

void Conversation::set_system(const std::string& text) {
  if (has_system()) messages_.erase(messages_.begin());
  if (!text.empty()) messages_.insert(messages_.begin(), message_of("system", text));
}

void Conversation::system(const std::string& text) {
  if (!text.empty()) set_system(text == "-" ? "" : text);
  say("system   {}\n", has_system() ? messages_.front()["content"].get<std::string>() : "none");
}

void Conversation::kv(const std::string& format) {
  if (!format.empty()) speaker_.change_cache(parse_kv_choice(format).or_throw());
  say("cache    {}: {}, {} tokens\n", kv_text(speaker_.kv()), speaker_.cache_cost(), speaker_.session().n_past());
}

void Conversation::regenerate(const std::string&) {
  if (messages_.empty() || messages_.back()["role"] != "assistant")
    throw Error(ErrorKind::usage, "there is no answer yet");
  const text::Json last = messages_.back();
  messages_.erase(messages_.size() - 1);
  if (!messages_.empty() && messages_.back()["role"] == "user") return answer_messages();
  messages_.push_back(last);
  throw Error(ErrorKind::usage, "the last answer answers no message");
}

void Conversation::undo(const std::string&) {
  size_t n = messages_.size();
  while (n > 0 && messages_[n - 1]["role"] != "user") --n;
  if (n == 0) throw Error(ErrorKind::usage, "there is no message yet");
  messages_.erase(messages_.begin() + ptrdiff_t(n) - 1, messages_.end());
  say("undone   {} messages left\n", messages_.size() - size_t(has_system()));
}

void Conversation::reset(const std::string&) {
  messages_.erase(messages_.begin() + has_system(), messages_.end());
  say("reset    {}\n", has_system() ? "the system prompt stays" : "nothing is left");
}

void Conversation::save(const std::string& path) {
  if (path.empty()) throw Error(ErrorKind::usage, "/save needs a file name");
  save_chat({.model = chat_.model().info().name, .kv = kv_text(speaker_.kv()), .messages = messages_}, path).or_throw();
  say("saved    {} messages in {}\n", messages_.size(), path);
}

void Conversation::load(const std::string& path) {
  if (path.empty()) throw Error(ErrorKind::usage, "/load needs a file name");
  SavedChat chat = load_chat(path).or_throw();
  messages_ = std::move(chat.messages);
  say("loaded   {} messages from {}\n", messages_.size(), path);
  if (chat.model != chat_.model().info().name) say("         they were written with {}\n", chat.model);
  if (chat.kv != kv_text(speaker_.kv())) say("         with the cache {} (/kv {} changes to it)\n", chat.kv, chat.kv);
}

void Conversation::stats(const std::string&) {
  const Session& session = speaker_.session();
  const KvReport kv = session.kv_report();
  say("prompts  {} tokens read, {:.1f} tok/s\n", n_read_, tokens_per_second(n_read_, read_seconds_));
  say("answers  {} tokens, {:.1f} tok/s\n", n_written_, tokens_per_second(n_decoded_, decode_seconds_));
  if (options_.speaker.speculation) {
    const SpecReport& spec = options_.speaker.speculation->report();
    say("spec     {}: {} steps, {} proposed, {} accepted, {:.2f} tokens a step\n", options_.spec_type, spec.n_steps,
        spec.n_proposed, spec.n_accepted, spec.tokens_per_step());
  }
  say("cache    {}: {} of {} tokens, {} bytes; {}\n", kv_text(speaker_.kv()), session.n_past(), kv.n_ctx,
      kv.bytes_per_token() * session.n_past() + kv.k.fixed_bytes + kv.v.fixed_bytes, speaker_.cache_cost());
}

void Conversation::print_json(const text::Json& message, const GenerateResult& result) {
  text::Json row = message;
  row["stopped"] = stop_reason_name(result.reason);
  row["n_read"] = result.n_prompt;
  row["n_written"] = result.tokens.size();
  row["n_past"] = speaker_.session().n_past();
  row["prefill_seconds"] = result.prefill_seconds;
  row["decode_seconds"] = result.decode_seconds;
  fmt::print("{}\n", row.dump(-1, ' ', false, text::Json::error_handler_t::replace));
  std::fflush(stdout);
}

void Conversation::answer_messages() {
  AnswerPrinter printer(!options_.json);
  int n_dropped = 0;
  const GenerateResult result = speaker_.say(messages_, n_dropped, printer);
  messages_.push_back(printer.finish());
  if (options_.json) print_json(messages_.back(), result);
  if (n_dropped > 0) note("(the context was full: the {} oldest messages are forgotten)\n", n_dropped);
  if (result.reason == StopReason::interrupted) note("(stopped; what was written stays in the conversation)\n");
  if (result.reason == StopReason::context_full)
    note("(the context of {} tokens is full: the answer ends here, the oldest turns go before the next one)\n",
         speaker_.session().n_ctx());
  n_read_ += result.n_prompt;
  n_written_ += int(result.tokens.size());
  n_decoded_ += result.n_decoded;
  read_seconds_ += result.prefill_seconds;
  decode_seconds_ += result.decode_seconds;
}

void Conversation::command(const std::string& line) {
  const size_t end = line.find_first_of(" \n");
  const std::string name = line.substr(0, end);
  std::string argument = end == line.npos ? "" : line.substr(end);
  argument.erase(0, argument.find_first_not_of(" \n"));
  argument.erase(argument.find_last_not_of(" \n") + 1);
  for (const Row& row : rows())
    if (row.name == name) return (this->*row.action)(argument);
  std::vector<std::string_view> names;
  for (const Row& row : rows()) names.push_back(row.name);
  const std::string near = closest_word(name, names);
  throw_error(ErrorKind::usage, "there is no command {} ({}/help lists them)", name,
              near.empty() ? "" : fmt::format("did you mean {}? ", near));
}

int Conversation::run() {
  note("{}", options_.facts(speaker_.session(), speaker_.kv()));
  if (!chat_.has_template()) note("         no chat template: a base model, which goes on with \"User: ...\" lines\n");
  if (reader_.terminal()) note("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves\n");
  while (!done_) {
    std::string line;
    const LineReader::Got got = reader_.read_message(line);
    if (asked_to_end() || (got == LineReader::Got::interrupted && !reader_.terminal()))
      return int(ErrorKind::interrupted);
    clear_interrupt();
    if (got == LineReader::Got::end) break;
    if (got == LineReader::Got::interrupted || line.find_first_not_of(" \n") == line.npos) continue;
    const text::Json before = messages_;
    try {
      if (is_command(line)) {
        command(line);
      } else {
        messages_.push_back(message_of("user", line));
        answer_messages();
      }
    } catch (const Error& error) {
      if (joined_ranks() && joined_ranks()->failed()) throw;
      // A message that cannot be answered is no part of the conversation.
      messages_ = before;
      end_text(true);
      fmt::print(stderr, "error: {}\n", error.what());
    }
    if (asked_to_end()) return int(ErrorKind::interrupted);
    clear_interrupt();
  }
  if (reader_.terminal()) fmt::print("\n");
  return 0;
}

}  // namespace

int converse(const ChatModel& chat, const ConversationOptions& options) { return Conversation(chat, options).run(); }

}  // namespace ridge::chat
