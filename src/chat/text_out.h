// Generated text on stdout, and a line of its own for what comes behind it.
#pragma once

#include <string_view>

namespace ridge::chat {

/// Writes at once.
void write_text(std::string_view text);
/// Ends the line that write_text() left open where other lines may follow it: on a terminal, and before lines of stderr
/// that go to the terminal or file that stdout goes to. A pipe or a file of its own holds the text alone. `on_stderr`:
/// whether lines of stderr follow.
void end_text(bool on_stderr);

}  // namespace ridge::chat
