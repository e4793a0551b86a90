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

}  // namespace ridge::io
