// Untrusted JSON: nlohmann-json behind a depth limit and a duplicate-key check.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace ridge::io {

using Json = nlohmann::json;

/// Model files nest to about 6; 128 leaves room and keeps every recursive use of a document safe.
inline constexpr int kMaxJsonDepth = 128;
/// A 256k-piece tokenizer.json has about 2 million values. A value costs up to 100 bytes, so this bounds memory.
inline constexpr int64_t kMaxJsonValues = int64_t(1) << 23;

/// Parses `text`. Refuses nesting deeper than kMaxJsonDepth, more than kMaxJsonValues values, duplicate keys, NUL bytes
/// and invalid UTF-8; the failure names `where`, the line and the column.
Result<Json> parse_json(std::string_view text, std::string_view where);

/// The text with 1e308 for every bare Infinity, which is no JSON: Python writes it, and published configurations have
/// it.
std::string with_finite_numbers(std::string_view text);

}  // namespace ridge::io
