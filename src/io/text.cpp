#include "io/text.h"

#include <fmt/format.h>
#include <utf8proc.h>

namespace ridge::io {
namespace {

constexpr size_t kShownBytes = 80;

/// Length of the UTF-8 sequence at the start of `text` (not empty) and its code point; 0 when it is broken.
size_t sequence_at(std::string_view text, int32_t& code_point) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const utf8proc_ssize_t length = utf8proc_iterate(bytes, utf8proc_ssize_t(text.size()), &code_point);
  return length > 0 ? size_t(length) : 0;
}

bool is_control(int32_t code_point) { return code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0); }

}  // namespace

bool valid_utf8(std::string_view text) {
  int32_t code_point = 0;
  while (!text.empty()) {
    const size_t length = sequence_at(text, code_point);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string in_quotes(std::string_view text) {
  std::string shown = "'";
  size_t at = 0;
  while (at < text.size() && at < kShownBytes) {
    int32_t code_point = 0;
    const size_t length = sequence_at(text.substr(at), code_point);
    if (length == 0 || is_control(code_point)) {
      for (size_t i = 0; i < (length == 0 ? 1 : length); ++i) shown += fmt::format("\\x{:02x}", uint8_t(text[at + i]));
      at += length == 0 ? 1 : length;
      continue;
    }
    shown += text.substr(at, length);
    at += length;
  }
  shown += at < text.size() ? fmt::format("...' ({} bytes)", text.size()) : "'";
  return shown;
}

}  // namespace ridge::io
