#include "cli/prompt_ids.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/interrupt.h"
#include "cli/options.h"
#include "io/mapped_file.h"
#include "io/text.h"

namespace ridge::cli {
namespace {

constexpr std::string_view kBetweenIds = ", \t\r\n";

/// Reads a file that may make one wait, until it ends.
std::string read_stream(int descriptor, const std::string& name, bool quiet) {
  const bool is_terminal = isatty(descriptor);
  if (is_terminal && !quiet) fmt::print(stderr, "prompt   from the terminal: Ctrl-D ends it\n");
  std::string text;
  char buffer[1 << 16];
  while (true) {
    if (!wait_for_input(descriptor)) throw Error(ErrorKind::interrupted, "interrupted before the prompt was read");
    const ssize_t n = ::read(descriptor, buffer, sizeof buffer);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) throw_error(ErrorKind::failure, "cannot read the prompt: {}: {}", name, std::strerror(errno));
    text.append(buffer, size_t(n));
    if (text.size() > kMaxPromptBytes)
      throw_error(ErrorKind::usage, "the prompt on {} is longer than {} MiB", name, kMaxPromptBytes >> 20);
    // A terminal hands on whole lines, and half a line only at Ctrl-D.
    const bool is_cut = n > 0 && is_terminal && buffer[n - 1] != '\n';
    if (is_cut && !quiet) fmt::print(stderr, "\n");
    if (n == 0 || is_cut) return text;
  }
}

}  // namespace

std::string read_stdin(bool quiet) { return read_stream(STDIN_FILENO, "stdin", quiet); }

std::string read_prompt_file(const std::string& path, bool quiet) {
  struct stat facts {};
  const bool waits = ::stat(path.c_str(), &facts) == 0 && (S_ISFIFO(facts.st_mode) || S_ISCHR(facts.st_mode));
  if (!waits) return io::read_text_file(path, kMaxPromptBytes).or_throw();
  // Opening a pipe that nobody writes to yet must not wait where Ctrl-C is not heard.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw_error(ErrorKind::bad_file, "cannot open {}: {}", io::in_quotes(path), std::strerror(errno));
  const struct Closing {
    int descriptor;
    ~Closing() { ::close(descriptor); }
  } closing{descriptor};
  return read_stream(descriptor, io::in_quotes(path), quiet);
}

std::vector<int32_t> parse_ids(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBetweenIds), text.size()));
  text = text.substr(0, text.find_last_not_of(kBetweenIds) + 1);
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<int32_t> ids;
  for (size_t at = 0; (at = text.find_first_not_of(kBetweenIds, at)) != text.npos;) {
    const std::string_view word = text.substr(at, text.find_first_of(kBetweenIds, at) - at);
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0)
      bad_flag("--prompt-ids", io::in_quotes(word) + " is not a token id",
               "whole numbers between spaces or commas, or a JSON array of them");
    ids.push_back(id);
    at += word.size();
  }
  return ids;
}

std::vector<int32_t> read_prompt_ids(const std::string& value) {
  if (value == "-") return parse_ids(read_stdin());
  if (value.find_first_not_of("0123456789[]" + std::string(kBetweenIds)) == value.npos) return parse_ids(value);
  return parse_ids(read_prompt_file(value));
}

}  // namespace ridge::cli
