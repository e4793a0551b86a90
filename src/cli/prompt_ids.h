// Prompts as token ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ridge::cli {

inline constexpr uint64_t kMaxPromptBytes = uint64_t(64) << 20;

/// All of stdin, at most kMaxPromptBytes; throws usage above.
std::string read_stdin();

/// Whole numbers between spaces, commas or line ends, in brackets or not. Throws usage naming what is no id.
std::vector<int32_t> parse_ids(std::string_view text);
/// The value of --prompt-ids: a list, "-" for stdin, or else the name of a file.
std::vector<int32_t> read_prompt_ids(const std::string& value);

}  // namespace ridge::cli
