// Utf8Stream: see tokenizer.h.
#include "base/utf8.h"
#include "io/tokenizer.h"

namespace ridge::io {

namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Char next = first_utf8(rest);
    if (next.kind == Utf8Kind::incomplete) break;
    out += next.kind == Utf8Kind::valid ? rest.substr(0, next.length) : kReplacement;
    rest.remove_prefix(next.length);
  }
  pending_ = std::string(rest);
  return out;
}

std::string Utf8Stream::finish() {
  const bool cut = !pending_.empty();
  pending_.clear();
  return std::string(cut ? kReplacement : "");
}

}  // namespace ridge::io
