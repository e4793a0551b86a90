// Lines that people type: with editing and history on a terminal, as they are otherwise.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace ridge::chat {

/// Messages typed before, one a line of a file that only its owner can read. The newest kHistoryLines are kept.
inline constexpr size_t kHistoryLines = 1000, kHistoryBytes = 1 << 20;

/// $XDG_STATE_HOME/ridge/chat_history, or the same below ~/.local/state; empty without either.
std::filesystem::path history_path();

class LineReader {
 public:
  enum class Got { line, interrupted, end };

  /// `history`: the file, or empty for none. Only a terminal has one; a file that cannot be used is said on stderr
  /// once. `commands`: what Tab completes at the begin of a line.
  LineReader(const std::filesystem::path& history, std::vector<std::string> commands);
  ~LineReader();

  /// A message: one line; lines that end in \ go on in the next, and """ begins and ends a block of lines. What is
  /// pasted is one message, whatever its lines. A terminal shows nothing of what is typed until the next call, which
  /// gets it. Ctrl-C and SIGTERM give `interrupted`.
  Got read_message(std::string& message);
  bool terminal() const { return terminal_ != nullptr; }

 private:
  struct Terminal;
  Got read(const std::string& prompt, std::string& line);
  Got read_rest(std::string& message);
  Got read_plain(std::string& line);

  std::unique_ptr<Terminal> terminal_;
  std::string ahead_;  ///< read and not yet asked for
};

}  // namespace ridge::chat
