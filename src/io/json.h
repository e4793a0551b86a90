// Untrusted JSON: nlohmann-json behind a depth limit and a duplicate-key check.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"

namespace ridge::io {

using Json = nlohmann::json;

/// Parses `text`. Refuses nesting deeper than 128, duplicate keys and invalid UTF-8; the failure names `where`.
Result<Json> parse_json(std::string_view text, std::string_view where);

}  // namespace ridge::io
