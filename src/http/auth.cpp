#include "http/auth.h"

#include <algorithm>
#include <cstdint>

namespace ridge::http {
namespace {

constexpr size_t kMaxKey = 512;

/// Time depends on the length of `key` alone.
bool same_bytes(std::string_view key, std::string_view shown) {
  volatile unsigned difference = key.size() == shown.size() ? 0 : 1;
  for (size_t i = 0; i < key.size(); ++i)
    difference =
        difference | (unsigned(uint8_t(key[i])) ^ unsigned(shown.empty() ? 0 : uint8_t(shown[i % shown.size()])));
  return difference == 0;
}

}  // namespace

Result<Keys> Keys::parse(std::string_view text, std::string_view where) {
  Keys keys;
  for (int line = 1; !text.empty(); ++line) {
    std::string_view key = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), key.size() + 1));
    if (key.ends_with('\r')) key.remove_suffix(1);
    if (key.empty() || key[0] == '#') continue;
    const bool visible = std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7F; });
    if (!visible || key.size() > kMaxKey)
      return bad_file("{}: line {}: a key has 1 to {} visible ASCII characters and no blanks", where, line, kMaxKey);
    keys.keys_.emplace_back(key);
  }
  return keys;
}

std::optional<size_t> Keys::find(std::string_view shown) const {
  std::optional<size_t> found;
  for (size_t i = 0; i < keys_.size(); ++i)  // all of them: time must not tell which one was met
    if (same_bytes(keys_[i], shown)) found = i;
  return found;
}

std::optional<size_t> Keys::find(const Headers& headers) const {
  constexpr std::string_view kBearer = "Bearer ";
  std::string_view shown = headers.get("Authorization");
  if (shown.empty()) return find(headers.get("X-Api-Key"));
  if (!same_name(shown.substr(0, kBearer.size()), kBearer)) return {};
  return find(shown.substr(kBearer.size()));
}

}  // namespace ridge::http
