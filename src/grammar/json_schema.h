// JSON Schema as a grammar: every text of the grammar is a JSON document that the schema accepts.
#pragma once

#include "base/ordered_json.h"
#include "grammar/grammar.h"

namespace ridge::grammar {

/// Objects keep the order of their members: properties are written in the schema's order.
using Json = OrderedJson;

inline constexpr int kMaxSchemaDepth = 64;           ///< schemas in schemas
inline constexpr size_t kMaxSchemaValues = 1 << 15;  ///< objects, lists, strings, ... in a schema
inline constexpr size_t kMaxMergedValues =
    1 << 17;  ///< the same in schemas joined for allOf or for what is beside $ref, anyOf

/// docs/structured-output.md says what is supported. Keywords that only describe are ignored; others are refused by
/// name, with the JSON pointer of their schema. Without `type` the types are those that the keywords speak of, or all.
/// The document stands between `before` and `after`.
Result<Grammar> grammar_of_schema(const Json& schema, std::string_view before = {}, std::string_view after = {});

/// Any JSON object, as deeply nested as kMaxStack allows.
Result<Grammar> any_json_object();

}  // namespace ridge::grammar
