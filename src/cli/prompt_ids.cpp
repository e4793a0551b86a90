#include "cli/prompt_ids.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "cli/options.h"
#include "io/mapped_file.h"
#include "io/text.h"

namespace ridge::cli {
namespace {

constexpr std::string_view kBetweenIds = ", \t\r\n";

}  // namespace

std::string read_stdin() {
  std::string text;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, n);
    if (text.size() > kMaxPromptBytes)
      throw_error(ErrorKind::usage, "the prompt on stdin is longer than {} MiB", kMaxPromptBytes >> 20);
  }
  return text;
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
