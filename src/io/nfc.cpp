// Unicode NFC of user text for tokenizers that were trained on normalised text.
#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "base/utf8.h"
#include "io/text.h"
#include "io/tokenizer_parts.h"

namespace ridge::io {

namespace {

constexpr int kMaxMarks = 256;

bool has_long_mark_run(std::string_view text) {
  int marks = 0;
  while (!text.empty()) {
    const Utf8Char next = first_utf8(text);
    const bool mark = next.code >= 0x300 && utf8proc_get_property(utf8proc_int32_t(next.code))->combining_class != 0;
    marks = mark ? marks + 1 : 0;
    if (marks > kMaxMarks) return true;
    text.remove_prefix(next.length);
  }
  return false;
}

bool is_ascii(std::string_view text) {
  for (const char c : text)
    if (uint8_t(c) >= 0x80) return false;
  return true;
}

}  // namespace

std::string to_nfc(std::string_view text) {
  if (is_ascii(text) || !valid_utf8(text) || has_long_mark_run(text)) return std::string(text);
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), utf8proc_ssize_t(text.size()), &raw,
                   utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
  if (length < 0) throw Error(ErrorKind::failure, std::string("NFC: ") + utf8proc_errmsg(length));
  return std::string(reinterpret_cast<const char*>(raw), size_t(length));
}

}  // namespace ridge::io
