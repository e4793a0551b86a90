#include "io/text.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace ridge::io {
namespace {

constexpr size_t kShownBytes = 80;

bool is_control(uint32_t code_point) { return code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0); }

}  // namespace

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char first = first_utf8(text);
    if (first.kind != Utf8Kind::valid) return false;
    text.remove_prefix(first.length);
  }
  return true;
}

std::string in_quotes(std::string_view text) {
  std::string shown = "'";
  size_t at = 0;
  while (at < text.size() && at < kShownBytes) {
    const Utf8Char next = first_utf8(text.substr(at));
    const std::string_view bytes = text.substr(at, next.length);
    if (next.kind == Utf8Kind::valid && !is_control(next.code)) {
      shown += bytes;
    } else {
      for (const char byte : bytes) shown += fmt::format("\\x{:02x}", uint8_t(byte));
    }
    at += next.length;
  }
  shown += at < text.size() ? fmt::format("...' ({} bytes)", text.size()) : "'";
  return shown;
}

}  // namespace ridge::io
