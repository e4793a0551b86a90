#include "chat/line_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/interrupt.h"
#include "base/user_folder.h"
#include "engine/kv_choice.h"
#include "io/line_file.h"
#include "io/mapped_file.h"

namespace ridge::chat {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLineBytes = size_t(64) << 20;
constexpr std::string_view kBlock = "\"\"\"";
/// Longer messages are in no history file.
constexpr size_t kMaxKeptBytes = size_t(64) << 10;

// Bracketed paste: a terminal that is asked to puts these two around what is pasted, with CR for line breaks.
constexpr const char *kAskForPastes = "\033[?2004h", *kNoMorePastes = "\033[?2004l";
constexpr std::wstring_view kPasteEnd = L"\033[201~";

bool knows_codes() {
  const char* const term = std::getenv("TERM");
  return term && std::string_view(term) != "dumb";
}

/// With line feeds for line breaks, without other control characters but tabs.
std::wstring plain_paste(std::wstring_view pasted) {
  std::wstring text;
  for (size_t i = 0; i < pasted.size(); ++i) {
    const wchar_t c = pasted[i];
    const bool is_break = c == L'\r' || c == L'\n';
    if (c == L'\n' && i > 0 && pasted[i - 1] == L'\r') continue;
    if (is_break) text += L'\n';
    else if (c == L'\t' || (c >= L' ' && c != L'\177')) text += c;
  }
  return text;
}

/// Bound to the begin of a paste: all of it goes into the line, line breaks too.
unsigned char insert_paste(EditLine* el, int) {
  std::wstring pasted;
  wchar_t key = 0;
  while (!pasted.ends_with(kPasteEnd)) {
    if (el_wgetc(el, &key) != 1) return CC_EOF;
    pasted += key;
  }
  pasted.resize(pasted.size() - kPasteEnd.size());
  const std::wstring text = plain_paste(pasted);
  return text.empty() || el_winsertstr(el, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

/// The longest text that all of them begin with.
std::string common_begin(const std::vector<std::string>& words) {
  std::string begin = words.front();
  for (const std::string& word : words) begin.resize(size_t(std::ranges::mismatch(begin, word).in1 - begin.begin()));
  return begin;
}

/// libedit's own reader tries again after a signal; a Ctrl-C has to come through.
int read_key(EditLine*, wchar_t* key) {
  std::mbstate_t state{};
  for (char byte;;) {
    const ssize_t n = wait_for_input() ? ::read(STDIN_FILENO, &byte, 1) : -1;
    if (n < 0 && errno == EINTR && !interrupted()) continue;
    if (n != 1) return int(n);
    const size_t used = std::mbrtowc(key, &byte, 1, &state);
    if (used == size_t(-2)) continue;
    if (used == size_t(-1)) *key = L'?';
    return 1;
  }
}

/// A message of several lines is one line of the file, with CR for its line breaks.
std::string with_breaks(std::string text, char from, char to) {
  std::ranges::replace(text, from, to);
  return text;
}

/// The newest lines of `text`, as many as a history keeps.
std::vector<std::string> newest_lines(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  lines.pop_back();  // behind the last line's end
  size_t bytes = 0, first = lines.size();
  while (first > 0 && lines.size() - first < kHistoryLines && (bytes += lines[first - 1].size() + 1) <= kHistoryBytes)
    --first;
  lines.erase(lines.begin(), lines.begin() + ptrdiff_t(first));
  return lines;
}

/// The newest lines of the file, which is written anew when it holds more.
std::vector<std::string> read_history(io::LineFile& file) {
  std::vector<std::string> lines;
  const auto keep_newest = [&](const std::string& text) -> std::optional<std::string> {
    lines = newest_lines(text);
    const std::string kept = fmt::format("{}\n", fmt::join(lines, "\n"));
    return kept.size() < text.size() ? std::optional(kept) : std::nullopt;
  };
  file.rewrite(2 * kHistoryBytes, keep_newest).or_throw();
  return lines;
}

/// Open for lines at the end, its owner's only.
io::LineFile open_history(const fs::path& path) {
  std::error_code ignored;
  if (const fs::path folder = path.parent_path(); !fs::exists(folder, ignored)) {
    fs::create_directories(folder.parent_path(), ignored);
    ::mkdir(folder.c_str(), 0700);
  }
  io::LineFile file = io::LineFile::open(path, {.mode = 0600, .extra_flags = O_NOFOLLOW}).or_throw();
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write, ignored);
  return file;
}

}  // namespace

fs::path history_path() {
  const fs::path folder = user_folder("XDG_STATE_HOME", ".local/state");
  return folder.empty() ? folder : folder / "chat_history";
}

struct LineReader::Terminal {
  EditLine* el = nullptr;
  History* history = nullptr;
  std::string prompt, last;
  const std::vector<std::string> commands;
  std::optional<SilentTyping> silence;  ///< from one message to the next
  io::LineFile history_file;

  Terminal(const fs::path& file, std::vector<std::string> completed) : commands(std::move(completed)) {
    setlocale(LC_CTYPE, "");
    if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    el = el_init("ridge", stdin, stdout, stderr);
    history = history_init();
    HistEvent event;
    ::history(history, &event, H_SETSIZE, int(kHistoryLines));
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(el, EL_CLIENTDATA, this);
    el_set(
        el, EL_PROMPT, +[](EditLine* of) { return of_line(of).prompt.data(); });
    el_set(el, EL_GETCFN, read_key);
    el_set(el, EL_HIST, ::history, history);
    el_set(el, EL_EDITOR, "emacs");
    el_source(el, nullptr);
    // The wide calls keep the names; the narrow ones lose a copy of them.
    el_wset(el, EL_ADDFN, L"ridge-paste", L"Insert a paste", insert_paste);
    el_wset(
        el, EL_ADDFN, L"ridge-complete", L"Complete a command",
        +[](EditLine* of, int) { return of_line(of).complete(); });
    el_wset(el, EL_BIND, L"\\e[200~", L"ridge-paste", nullptr);
    el_wset(el, EL_BIND, L"^I", L"ridge-complete", nullptr);
    if (knows_codes()) fmt::print("{}", kAskForPastes);
    if (file.empty()) return;
    try {
      // Opened first: a file made by others becomes its owner's only before anything is written to it.
      history_file = open_history(file);
      for (const std::string& line : read_history(history_file))
        ::history(history, &event, H_ENTER, with_breaks(line, '\r', '\n').c_str());
    } catch (const Error& error) {
      history_file = {};
      fmt::print(stderr, "history  not kept: {}\n", error.what());
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    silence.reset();
    if (knows_codes()) fmt::print("{}", kNoMorePastes);
    std::fflush(stdout);
    el_end(el);
    history_end(history);
  }

  static Terminal& of_line(EditLine* el) {
    void* data = nullptr;
    el_get(el, EL_CLIENTDATA, &data);
    return *static_cast<Terminal*>(data);
  }

  /// The command that the line begins with: as much of it as is certain, else a list of what it may become.
  unsigned char complete() {
    const LineInfo* const line = el_line(el);
    const std::string_view typed(line->buffer, size_t(line->cursor - line->buffer));
    std::vector<std::string> found;
    for (const std::string& command : commands)
      if (!typed.empty() && command.starts_with(typed)) found.push_back(command);
    if (found.empty()) return CC_ERROR;
    std::string more = common_begin(found).substr(typed.size());
    if (found.size() == 1) more += ' ';
    if (!more.empty()) return el_insertstr(el, more.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
    fmt::print("\n{}\n", fmt::join(found, "  "));
    std::fflush(stdout);
    return CC_REDISPLAY;
  }

  Got read(std::string& line) {
    silence.reset();
    const Got got = read_line(line);
    silence.emplace();
    return got;
  }

  Got read_line(std::string& line) {
    el_resize(el);
    int n = 0;
    // el_gets would show the prompt first and lose a Ctrl-D typed before its first read.
    el_set(el, EL_PREP_TERM, 1);
    const char* text = el_gets(el, &n);
    if (interrupted()) {
      el_reset(el);
      fmt::print("\n");
      return Got::interrupted;
    }
    if (!text || n <= 0) return Got::end;
    line.assign(text, size_t(n));
    if (line.ends_with('\n')) line.pop_back();
    return Got::line;
  }

  void remember(const std::string& message) {
    if (message.find_first_not_of(" \n") == message.npos || message == last) return;
    last = message;
    HistEvent event;
    ::history(history, &event, H_ENTER, message.c_str());
    if (!history_file.is_open() || message.size() > kMaxKeptBytes) return;
    if (const Status added = history_file.add(with_breaks(message, '\n', '\r')); !added) {
      fmt::print(stderr, "history  not kept: {}\n", added.error().message);
      history_file = {};
    }
  }
};

LineReader::LineReader(const fs::path& history, std::vector<std::string> commands) {
  if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))
    terminal_ = std::make_unique<Terminal>(history, std::move(commands));
}
LineReader::~LineReader() = default;

LineReader::Got LineReader::read_plain(std::string& line) {
  for (size_t end;;) {
    if ((end = ahead_.find('\n')) != ahead_.npos) {
      line = ahead_.substr(0, end);
      ahead_.erase(0, end + 1);
      return Got::line;
    }
    char buffer[4096];
    const ssize_t n = wait_for_input() ? ::read(STDIN_FILENO, buffer, sizeof buffer) : -1;
    if (n < 0 && interrupted()) return Got::interrupted;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      line = std::exchange(ahead_, {});
      return line.empty() ? Got::end : Got::line;
    }
    ahead_.append(buffer, size_t(n));
    if (ahead_.size() > kMaxLineBytes)
      throw_error(ErrorKind::usage, "a line on stdin is longer than {} MiB", kMaxLineBytes >> 20);
  }
}

LineReader::Got LineReader::read(const std::string& prompt, std::string& line) {
  std::fflush(stdout);
  if (!terminal_) return read_plain(line);
  terminal_->prompt = prompt;
  return terminal_->read(line);
}

LineReader::Got LineReader::read_message(std::string& message) {
  Got got = read("> ", message);
  if (got != Got::line) return got;
  // Line breaks within a line were pasted, or come back from the history: such a message is whole.
  if (message.find('\n') == message.npos) got = read_rest(message);
  else if (message.ends_with('\n')) message.pop_back();
  if (terminal_ && got == Got::line) terminal_->remember(message);
  return got;
}

LineReader::Got LineReader::read_rest(std::string& message) {
  Got got = Got::line;
  if (!message.starts_with(kBlock)) {
    while (got == Got::line && message.ends_with('\\')) {
      message.back() = '\n';
      std::string more;
      if ((got = read("... ", more)) == Got::line) message += more;
    }
    return got == Got::end ? Got::line : got;
  }
  message.erase(0, kBlock.size());
  while (!message.ends_with(kBlock)) {
    std::string more;
    got = read("... ", more);
    if (got == Got::end) return Got::line;  // the end of the input ends the block too
    if (got != Got::line) return got;
    message += (message.empty() ? "" : "\n") + more;
  }
  message.erase(message.size() - kBlock.size());
  if (message.ends_with('\n')) message.pop_back();
  return Got::line;
}

}  // namespace ridge::chat
