// Text from untrusted files: is it UTF-8, and how to show it in a message.
#pragma once

#include <string>
#include <string_view>

namespace ridge::io {

/// True when `text` is well-formed UTF-8 (no overlong forms, no surrogates, nothing past U+10FFFF).
bool valid_utf8(std::string_view text);

/// `text` in single quotes, safe for a terminal: control bytes and broken UTF-8 as \xNN, at most 80 bytes of it, then
/// its length.
std::string in_quotes(std::string_view text);

}  // namespace ridge::io
