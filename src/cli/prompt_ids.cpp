#include "cli/prompt_ids.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "cli/interrupt.h"
#include "cli/options.h"
#include "io/mapped_file.h"
#include "io/text.h"

namespace ridge::cli {
namespace {

constexpr std::string_view kBetweenIds = ", \t\r\n";

}  // namespace

std::string read_stdin(bool quiet) {
  const bool is_terminal = isatty(STDIN_FILENO);
  if (is_terminal && !quiet) fmt::print(stderr, "prompt   from the terminal: Ctrl-D ends it\n");
  std::string text;
  char buffer[1 << 16];
  while (true) {
    if (!wait_for_input()) throw Error(ErrorKind::interrupted, "interrupted before the prompt was read");
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_error(ErrorKind::failure, "cannot read the prompt: stdin: {}", std::strerror(errno));
    text.append(buffer, size_t(n));
    if (text.size() > kMaxPromptBytes)
      throw_error(ErrorKind::usage, "the prompt on stdin is longer than {} MiB", kMaxPromptBytes >> 20);
    // A terminal hands on whole lines, and half a line only at Ctrl-D.
    const bool is_cut = n > 0 && is_terminal && buffer[n - 1] != '\n';
    if (is_cut && !quiet) fmt::print(stderr, "\n");
    if (n == 0 || is_cut) return text;
  }
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
  return parse_ids(io::read_text_file(value, kMaxPromptBytes).or_throw());
}

}  // namespace ridge::cli
