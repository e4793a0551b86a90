// JSON from outside: every parse of this program has limits, and nothing that throws reads its values.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/ordered_json.h"
#include "base/result.h"

namespace ridge {

/// The depth keeps every recursive walk over a document safe, the number of values bounds its memory (up to 100 bytes a
/// value).
struct JsonLimits {
  int depth = 64;
  int64_t values = int64_t(1) << 22;
  /// Says why a key may not come twice in one object; null: the last one counts, as in most readers of JSON.
  std::string (*refuse_twice)(std::string_view key) = nullptr;
};

/// Parses one document in time linear in its bytes. A failure says why, with line and column where the text is no JSON;
/// its kind is usage for a limit and bad_file for anything else. The types are nlohmann's json and ordered_json and
/// OrderedJson.
template <class Json>
Result<Json> parse_within(std::string_view text, const JsonLimits& limits = {});
extern template Result<nlohmann::json> parse_within(std::string_view text, const JsonLimits& limits);
extern template Result<nlohmann::ordered_json> parse_within(std::string_view text, const JsonLimits& limits);
extern template Result<OrderedJson> parse_within(std::string_view text, const JsonLimits& limits);

/// The member of that name, or null: where `json` is no object, too.
template <class Json>
const Json* member(const Json& json, std::string_view key) {
  if (!json.is_object()) return nullptr;
  const auto at = json.find(key);
  return at == json.end() ? nullptr : &*at;
}
/// The text of a member; null where it is missing or something else.
template <class Json>
const std::string* member_text(const Json& json, std::string_view key) {
  const Json* found = member(json, key);
  return found ? found->template get_ptr<const std::string*>() : nullptr;
}
/// Whether a member is this text.
template <class Json>
bool member_is(const Json& json, std::string_view key, std::string_view text) {
  const std::string* found = member_text(json, key);
  return found && *found == text;
}

}  // namespace ridge
