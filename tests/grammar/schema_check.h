// A plain validator of the JSON Schema keywords that grammars know, written from the specification.
#pragma once

#include <cmath>
#include <regex>

#include "grammar/chars.h"
#include "grammar/json_schema.h"

namespace ridge::grammar {

inline bool is_of_schema_type(const Json& value, const std::string& type) {
  if (type == "integer") return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  return type == "array" ? value.is_array() : value.is_object();
}

inline bool matches(const Json& root, const Json& schema, const Json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  const auto has = [&](const char* keyword) { return schema.contains(keyword); };
  const auto sub = [&](const Json& other, const Json& part) { return matches(root, other, part); };
  if (value.is_null() && schema.value("nullable", false)) return true;
  if (has("$ref")) {
    const std::string ref = schema["$ref"];
    if (!sub(root[Json::json_pointer(ref.substr(1))], value)) return false;
  }
  if (has("type")) {
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    if (std::ranges::none_of(types, [&](const Json& type) { return is_of_schema_type(value, type); })) return false;
  }
  if (has("enum") && std::ranges::find(schema["enum"], value) == schema["enum"].end()) return false;
  if (has("const") && schema["const"] != value) return false;
  for (const char* keyword : {"anyOf", "oneOf"})
    if (has(keyword) && std::ranges::none_of(schema[keyword], [&](const Json& one) { return sub(one, value); }))
      return false;
  if (has("allOf") && !std::ranges::all_of(schema["allOf"], [&](const Json& one) { return sub(one, value); }))
    return false;
  if (value.is_object()) {
    const Json properties = schema.value("properties", Json::object());
    for (const Json& name : schema.value("required", Json::array()))
      if (!value.contains(name.get<std::string>())) return false;
    for (const auto& [name, part] : value.items()) {
      const Json& other =
          properties.contains(name) ? properties[name] : schema.value("additionalProperties", Json(true));
      if (!sub(other, part)) return false;
    }
  }
  if (value.is_array()) {
    if (value.size() < schema.value("minItems", 0u) || value.size() > schema.value("maxItems", 1u << 30)) return false;
    const Json first = schema.value("prefixItems", Json::array());
    for (size_t i = 0; i < value.size(); ++i)
      if (!sub(i < first.size() ? first[i] : schema.value("items", Json(true)), value[i])) return false;
  }
  if (value.is_string()) {
    const auto codes = code_points(value.get_ref<const std::string&>());
    if (!codes || codes->size() < schema.value("minLength", 0u) || codes->size() > schema.value("maxLength", 1u << 30))
      return false;
    if (has("pattern") &&
        !std::regex_search(value.get<std::string>(), std::regex(schema["pattern"].get<std::string>())))
      return false;
  }
  if (value.is_number()) {
    const double number = value.get<double>();
    if (has("minimum") && number < schema["minimum"].get<double>()) return false;
    if (has("maximum") && number > schema["maximum"].get<double>()) return false;
    if (has("exclusiveMinimum") && number <= schema["exclusiveMinimum"].get<double>()) return false;
    if (has("exclusiveMaximum") && number >= schema["exclusiveMaximum"].get<double>()) return false;
  }
  return true;
}

}  // namespace ridge::grammar
