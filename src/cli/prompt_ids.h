// Prompts as token ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ridge::cli {

inline constexpr uint64_t kMaxPromptBytes = uint64_t(64) << 20;

/// All of stdin, at most kMaxPromptBytes; throws usage above, and `interrupted` on Ctrl-C. On a terminal one Ctrl-D
/// ends it, in the middle of a line too; a hint says so unless `quiet`.
std::string read_stdin(bool quiet = true);
/// The text of a file, a pipe or a device, within the same bound. Throws bad_file where it cannot be read.
std::string read_prompt_file(const std::string& path, bool quiet = true);

/// Whole numbers between spaces, commas or line ends, in brackets or not. Throws usage naming what is no id.
std::vector<int32_t> parse_ids(std::string_view text);
/// The value of --prompt-ids: a list, "-" for stdin, or else the name of a file.
std::vector<int32_t> read_prompt_ids(const std::string& value);

}  // namespace ridge::cli
