#include "io/json.h"

#include "io/text.h"

namespace ridge::io {

Result<Json> parse_json(std::string_view text, std::string_view where) {
  const JsonLimits limits{.depth = kMaxJsonDepth, .values = kMaxJsonValues, .refuse_twice = [](std::string_view key) {
                            return fmt::format("key {} appears twice in one object", in_quotes(key));
                          }};
  Result<Json> json = parse_within<Json>(text, limits);
  if (!json) return bad_file("bad JSON: {}: {}", where, json.error().message);
  return json;
}

std::string with_finite_numbers(std::string_view text) {
  constexpr std::string_view kInfinity = "Infinity", kFinite = "1e308";
  std::string finite;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!quoted && text.substr(i).starts_with(kInfinity)) {
      finite += kFinite;
      i += kInfinity.size() - 1;
      continue;
    }
    if (text[i] == '"') quoted = !quoted;
    finite += text[i];
    if (quoted && text[i] == '\\' && i + 1 < text.size()) finite += text[++i];
  }
  return finite;
}

}  // namespace ridge::io
