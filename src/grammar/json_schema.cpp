#include "grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/work_limit.h"
#include "grammar/json_text.h"
#include "grammar/pattern.h"

namespace ridge::grammar {
namespace {

constexpr int kMaxJsonDepth = 256;
constexpr size_t kMaxPropertyName = 256;

using Names = std::set<std::string, std::less<>>;

const Names kAnnotations{"$comment",         "$defs",   "$id",         "$schema",      "contentEncoding",
                         "contentMediaType", "default", "definitions", "deprecated",   "description",
                         "discriminator",    "example", "examples",    "externalDocs", "readOnly",
                         "strict",           "title",   "writeOnly",   "xml"};
const std::map<std::string, Names, std::less<>> kKeywordsOfType{
    {"object", {"properties", "required", "additionalProperties"}},
    {"array", {"items", "prefixItems", "minItems", "maxItems"}},
    {"string", {"minLength", "maxLength", "pattern", "format"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
    {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
    {"boolean", {}},
    {"null", {}}};
const Names kOfAnyType{"$ref", "allOf", "anyOf", "const", "enum", "nullable", "oneOf", "type"};

constexpr const char* kTime = "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
constexpr const char* kDate =
    "(\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))"
    "|(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
const std::map<std::string, std::string, std::less<>> kFormats{
    {"date", fmt::format("^{}$", kDate)},
    {"time", fmt::format("^{}$", kTime)},
    {"date-time", fmt::format("^{}T{}$", kDate, kTime)},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"ipv4", "^((25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)$"},
    {"email",
     "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,15}){0,2}@([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\\.){1,3}[A-Za-z]"
     "{2,24}$"}};

bool is_annotation(std::string_view keyword) { return kAnnotations.contains(keyword) || keyword.starts_with("x-"); }

std::string pointer_step(std::string_view key) {
  std::string step = "/";
  for (const char c : key) step += c == '~' ? std::string("~0") : c == '/' ? std::string("~1") : std::string(1, c);
  return step;
}

std::string spelled_value(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Values in a document; nothing if there are more than kMaxSchemaValues or they nest too deeply for recursive
/// functions.
std::optional<size_t> size_of(const Json& document) {
  std::vector<std::pair<const Json*, int>> open{{&document, 0}};
  size_t n = 0;
  for (; !open.empty(); ++n) {
    const auto [value, depth] = open.back();
    open.pop_back();
    if (n + open.size() > kMaxSchemaValues || depth > kMaxJsonDepth) return std::nullopt;
    if (!value->is_structured()) continue;
    for (const Json& part : *value) open.push_back({&part, depth + 1});
  }
  return n;
}

bool is_of_type(const Json& value, std::string_view type) {
  if (type == "integer")
    return value.is_number_integer() || (value.is_number() && std::floor(value.get<double>()) == value.get<double>());
  return (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
         (type == "string" && value.is_string()) || (type == "number" && value.is_number()) ||
         (type == "boolean" && value.is_boolean()) || (type == "null" && value.is_null());
}

class SchemaCompiler {
 public:
  explicit SchemaCompiler(const Json& root) : root_(root) {}

  Result<Grammar> compile(std::string_view before, std::string_view after) {
    if (!size_of(root_))
      return refuse("#", "schema",
                    fmt::format("has more than {} values or nests deeper than {}", kMaxSchemaValues, kMaxJsonDepth));
    RIDGE_TRY(const Expr body, value(root_, "#", 0));
    // Rules of references are read after what refers to them: a chain of references nests nothing here.
    for (size_t i = 0; i < referred_.size(); ++i) {
      const Referred one = referred_[i];
      RIDGE_TRY(const Expr referred, value(*one.schema, one.pointer, 0));
      builder_.define(one.rule, referred);
    }
    auto grammar =
        std::move(builder_).finish(builder_.sequence({builder_.literal(before), body, builder_.literal(after)}));
    if (!grammar) return fail(ErrorKind::usage, "schema: as a {}", grammar.error().message);
    return grammar;
  }

 private:
  struct Referred {
    const Json* schema = nullptr;
    std::string pointer;
    uint32_t rule = 0;
  };

  static Failure refuse(std::string_view pointer, std::string_view keyword, std::string_view why) {
    return fail(ErrorKind::usage, "schema: {}: {}: {}", pointer, keyword, why);
  }

  Result<Expr> value(const Json& schema, const std::string& pointer, int depth) {
    if (depth > kMaxSchemaDepth)
      return refuse(pointer, "schema", fmt::format("nests deeper than {} schemas", kMaxSchemaDepth));
    WorkLimit::check();
    if (builder_.full()) return refuse(pointer, "schema", "the grammar becomes too large");
    if (schema.is_boolean()) return schema.get<bool>() ? json_.any() : builder_.choice({});
    if (!schema.is_object()) return refuse(pointer, "schema", "is no object and no boolean");
    RIDGE_TRY_STATUS(check_keywords(schema, pointer));
    if (const auto nullable = schema.find("nullable"); nullable != schema.end()) {
      if (!nullable->is_boolean()) return refuse(pointer, "nullable", "is no boolean");
      Json rest = without(schema, "nullable");
      if (!nullable->get<bool>()) return value(rest, pointer, depth + 1);
      RIDGE_TRY(const Expr not_null, value(rest, pointer, depth + 1));
      return builder_.choice({not_null, builder_.literal("null")});
    }
    if (schema.contains("$ref")) return reference(schema, pointer, depth);
    if (schema.contains("allOf")) return all_of(schema, pointer, depth);
    for (const char* keyword : {"anyOf", "oneOf"})
      if (schema.contains(keyword)) return any_of(schema, keyword, pointer, depth);
    RIDGE_TRY(const std::vector<std::string> types, types_of(schema, pointer));
    if (schema.contains("enum") || schema.contains("const")) return listed(schema, types, pointer);
    if (types.empty()) return json_.any();
    std::vector<Expr> options;
    for (const std::string& type : types) {
      if (type == "integer" && std::ranges::find(types, "number") != types.end()) continue;
      RIDGE_TRY(const Expr option, of_type(schema, type, pointer, depth));
      options.push_back(option);
    }
    return builder_.choice(std::move(options));
  }

  Status check_keywords(const Json& schema, const std::string& pointer) const {
    for (const auto& [keyword, content] : schema.items()) {
      bool known = is_annotation(keyword) || kOfAnyType.contains(keyword);
      for (const auto& [type, keywords] : kKeywordsOfType) known = known || keywords.contains(keyword);
      if (!known) return refuse(pointer, in_short(keyword), "this keyword is not supported");
    }
    return {};
  }

  static std::string in_short(const std::string& text) { return text.size() > 64 ? text.substr(0, 64) + "..." : text; }

  static Json without(const Json& schema, const char* keyword) {
    Json rest = schema;
    rest.erase(keyword);
    return rest;
  }

  /// Removes annotations and a keyword from a schema.
  static Json constraints_beside(const Json& schema, std::string_view taken) {
    Json rest = Json::object();
    for (const auto& [keyword, content] : schema.items())
      if (keyword != taken && !is_annotation(keyword)) rest[keyword] = content;
    return rest;
  }

  Result<const Json*> resolve(const Json& ref, const std::string& pointer) const {
    if (!ref.is_string()) return refuse(pointer, "$ref", "is no string");
    const auto& text = ref.get_ref<const std::string&>();
    if (text == "#") return &root_;
    if (!text.starts_with("#/"))
      return refuse(pointer, "$ref", "only references into this schema are supported: # and #/...");
    const Json* at = &root_;
    for (size_t start = 2; start <= text.size();) {
      const size_t end = std::min(text.find('/', start), text.size());
      RIDGE_TRY(const std::string key, step_of(std::string_view(text).substr(start, end - start), pointer));
      const bool is_index = at->is_array() && !key.empty() && key.size() < 8 &&
                            std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; });
      if (at->is_object() && at->contains(key)) at = &at->at(key);
      else if (is_index && std::stoul(key) < at->size()) at = &at->at(std::stoul(key));
      else return refuse(pointer, "$ref", fmt::format("{} leads nowhere", in_short(text)));
      start = end + 1;
    }
    return at;
  }

  /// A step of a JSON pointer in a URI: ~0 and ~1, and %HH.
  static Result<std::string> step_of(std::string_view spelled, const std::string& pointer) {
    std::string step;
    for (size_t i = 0; i < spelled.size(); ++i) {
      if (spelled[i] == '%') {
        const auto high = hex_digit(i + 1 < spelled.size() ? spelled[i + 1] : ' '),
                   low = hex_digit(i + 2 < spelled.size() ? spelled[i + 2] : ' ');
        if (!high || !low) return refuse(pointer, "$ref", "% without two hexadecimal digits");
        step += char(*high << 4 | *low);
        i += 2;
      } else if (spelled[i] == '~' && i + 1 < spelled.size()) {
        step += spelled[++i] == '1' ? '/' : '~';
      } else {
        step += spelled[i];
      }
    }
    return step;
  }

  Result<Expr> reference(const Json& schema, const std::string& pointer, int depth) {
    RIDGE_TRY(const Json* target, resolve(schema["$ref"], pointer));
    const Json beside = constraints_beside(schema, "$ref");
    if (!beside.empty()) {
      RIDGE_TRY(const Json joined, merge(*target, beside, pointer, depth));
      return value(joined, pointer, depth + 1);
    }
    const auto [place, is_new] = rules_.try_emplace(target);
    if (is_new) {
      const std::string name = schema["$ref"].get<std::string>();
      place->second = builder_.new_rule(in_short(name));
      referred_.push_back({target, name, place->second});
    }
    return builder_.rule(place->second);
  }

  Result<Expr> all_of(const Json& schema, const std::string& pointer, int depth) {
    const Json& parts = schema["allOf"];
    if (!parts.is_array() || parts.empty()) return refuse(pointer, "allOf", "is no list of schemas");
    Json joined = constraints_beside(schema, "allOf");
    for (const Json& part : parts) {
      RIDGE_TRY(Json next, merge(joined, part, pointer + "/allOf", depth));
      joined = std::move(next);
    }
    return value(joined, pointer, depth + 1);
  }

  Result<Expr> any_of(const Json& schema, const char* keyword, const std::string& pointer, int depth) {
    const Json& parts = schema[keyword];
    if (!parts.is_array() || parts.empty()) return refuse(pointer, keyword, "is no list of schemas");
    const Json beside = constraints_beside(schema, keyword);
    std::vector<Expr> options;
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string place = fmt::format("{}/{}/{}", pointer, keyword, i);
      if (beside.empty()) {
        RIDGE_TRY(const Expr option, value(parts[i], place, depth + 1));
        options.push_back(option);
        continue;
      }
      RIDGE_TRY(const Json joined, merge(beside, parts[i], place, depth));
      RIDGE_TRY(const Expr option, value(joined, place, depth + 1));
      options.push_back(option);
    }
    return builder_.choice(std::move(options));
  }

  /// One schema that accepts what both accept.
  Result<Json> merge(const Json& a, const Json& b, const std::string& pointer, int depth) {
    if (depth > kMaxSchemaDepth)
      return refuse(pointer, "$ref", fmt::format("joined references lead over more than {} schemas", kMaxSchemaDepth));
    WorkLimit::check();
    merged_ += 1 + size_of(a).value_or(kMaxSchemaValues) + size_of(b).value_or(kMaxSchemaValues);
    if (merged_ > kMaxMergedValues)
      return refuse(pointer, "allOf", fmt::format("joined schemas have more than {} values", kMaxMergedValues));
    for (const auto& [one, other] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
      if (one->is_boolean()) return one->get<bool>() ? *other : *one;
      if (!one->is_object()) return refuse(pointer, "schema", "is no object and no boolean");
      if (one->contains("$ref")) {
        RIDGE_TRY(const Json* target, resolve((*one)["$ref"], pointer));
        RIDGE_TRY(const Json resolved, merge(*target, constraints_beside(*one, "$ref"), pointer, depth + 1));
        return merge(resolved, *other, pointer, depth + 1);
      }
    }
    RIDGE_TRY_STATUS(check_keywords(a, pointer));
    RIDGE_TRY_STATUS(check_keywords(b, pointer));
    RIDGE_TRY_STATUS(check_joinable(a, b, pointer));
    Json joined = a;
    for (const auto& [keyword, content] : b.items()) {
      if (is_annotation(keyword)) continue;
      if (!a.contains(keyword)) {
        joined[keyword] = content;
      } else if (a[keyword] != content) {
        RIDGE_TRY(Json both, merge_keyword(keyword, a[keyword], content, pointer));
        joined[keyword] = std::move(both);
      }
    }
    return joined;
  }

  /// additionalProperties and items speak of what their own schema does not list, nullable of the whole of its own:
  /// beside the keywords of another schema they would mean something else.
  static Status check_joinable(const Json& a, const Json& b, const std::string& pointer) {
    for (const auto& [one, other] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
      if (one->contains("nullable")) return refuse(pointer, "nullable", "is not supported in schemas that are joined");
      if (one->contains("prefixItems") && (other->contains("prefixItems") || other->contains("items")))
        return refuse(pointer, "prefixItems", "cannot be joined with the items of another schema");
      const auto additional = one->find("additionalProperties");
      if (additional == one->end() || *additional == true || !other->contains("properties") ||
          !(*other)["properties"].is_object())
        continue;
      for (const auto& [name, property] : (*other)["properties"].items())
        if (!one->contains("properties") || !(*one)["properties"].contains(name))
          return refuse(pointer, "additionalProperties", "cannot be joined with a schema of other properties");
    }
    return {};
  }

  Result<Json> merge_keyword(const std::string& keyword, const Json& a, const Json& b, const std::string& pointer) {
    const bool numbers = a.is_number() && b.is_number();
    if (numbers && (keyword.starts_with("min") || keyword == "exclusiveMinimum")) return a < b ? b : a;
    if (numbers && (keyword.starts_with("max") || keyword == "exclusiveMaximum")) return a < b ? a : b;
    if (keyword == "type" || keyword == "enum") {
      Json both = Json::array();
      const Json list_a = a.is_array() ? a : Json::array({a}), list_b = b.is_array() ? b : Json::array({b});
      for (const Json& one : list_a) {
        const bool is_integer =
            keyword == "type" && one == "integer" && std::ranges::find(list_b, Json("number")) != list_b.end();
        if (is_integer || std::ranges::find(list_b, one) != list_b.end()) both.push_back(one);
      }
      for (const Json& one : list_b)
        if (keyword == "type" && one == "integer" && std::ranges::find(list_a, Json("number")) != list_a.end() &&
            std::ranges::find(both, one) == both.end())
          both.push_back(one);
      if (both.empty()) return refuse(pointer, keyword, "the joined schemas have no value in common");
      return both;
    }
    if (keyword == "required" && a.is_array() && b.is_array()) {
      Json both = a;
      for (const Json& name : b)
        if (std::ranges::find(a, name) == a.end()) both.push_back(name);
      return both;
    }
    if (keyword == "properties" && a.is_object() && b.is_object()) {
      Json both = a;
      for (const auto& [name, property] : b.items()) {
        if (!both.contains(name)) {
          both[name] = property;
          continue;
        }
        Json joined = Json::object({{"allOf", Json::array({both[name], property})}});
        both[name] = std::move(joined);
      }
      return both;
    }
    if (keyword == "items") return Json::object({{"allOf", Json::array({a, b})}});
    return refuse(pointer, keyword, "cannot be joined with another of this keyword");
  }

  /// Empty: all.
  Result<std::vector<std::string>> types_of(const Json& schema, const std::string& pointer) const {
    std::vector<std::string> types;
    if (const auto type = schema.find("type"); type != schema.end()) {
      const Json list = type->is_array() ? *type : Json::array({*type});
      for (const Json& one : list) {
        if (!one.is_string() || !kKeywordsOfType.contains(one.get_ref<const std::string&>()))
          return refuse(pointer, "type", "is none of object, array, string, number, integer, boolean, null");
        types.push_back(one);
      }
      if (types.empty()) return refuse(pointer, "type", "is empty");
      return types;
    }
    for (const auto& [type, keywords] : kKeywordsOfType)
      if (std::ranges::any_of(keywords, [&](const std::string& keyword) { return schema.contains(keyword); }))
        types.push_back(type);
    return types;
  }

  Result<Expr> listed(const Json& schema, const std::vector<std::string>& types, const std::string& pointer) {
    for (const auto& [keyword, content] : schema.items())
      if (keyword != "enum" && keyword != "const" && keyword != "type" && !is_annotation(keyword))
        return refuse(pointer, keyword, "is not supported beside enum or const");
    const bool has_list = schema.contains("enum");
    const Json values = has_list ? schema["enum"] : Json::array({schema["const"]});
    if (!values.is_array() || values.empty()) return refuse(pointer, "enum", "is no list of values");
    std::vector<std::string> words;
    for (const Json& one : values) {
      const bool is_wanted = !has_list || !schema.contains("const") || schema["const"] == one;
      if (is_wanted &&
          (types.empty() || std::ranges::any_of(types, [&](const std::string& type) { return is_of_type(one, type); })))
        words.push_back(spelled_value(one));
    }
    if (words.empty())
      return refuse(pointer, has_list ? "enum" : "const", "no value is left that the other keywords allow");
    return builder_.words(std::move(words));
  }

  Result<Expr> of_type(const Json& schema, const std::string& type, const std::string& pointer, int depth) {
    if (type == "object") return object(schema, pointer, depth);
    if (type == "array") return array(schema, pointer, depth);
    if (type == "string") return string(schema, pointer);
    if (type == "boolean") return json_.boolean();
    if (type == "null") return builder_.literal("null");
    return number(schema, type == "integer", pointer);
  }

  Result<Expr> object(const Json& schema, const std::string& pointer, int depth) {
    struct Property {
      Expr member;
      bool required;
    };
    const Json properties = schema.value("properties", Json::object()),
               required = schema.value("required", Json::array());
    if (!properties.is_object()) return refuse(pointer, "properties", "is no object");
    if (!required.is_array() || !std::ranges::all_of(required, [](const Json& name) { return name.is_string(); }))
      return refuse(pointer, "required", "is no list of names");
    const Json additional = schema.value("additionalProperties", Json(true));
    RIDGE_TRY(const Expr extra_value, value(additional, pointer + "/additionalProperties", depth + 1));
    Names required_names, declared;
    for (const Json& name : required) required_names.insert(name.get<std::string>());

    std::vector<Property> list;
    std::vector<std::vector<uint32_t>> names;
    const auto add = [&](const std::string& name, Expr content) -> Status {
      auto codes = code_points(name);
      if (!codes || codes->size() > kMaxPropertyName)
        return refuse(pointer, "properties",
                      fmt::format("a name is not UTF-8 or longer than {} characters", kMaxPropertyName));
      names.push_back(std::move(*codes));
      declared.insert(name);
      list.push_back({json_.member(builder_.literal(spelled_value(name)), content), required_names.contains(name)});
      return {};
    };
    for (const auto& [name, property] : properties.items()) {
      RIDGE_TRY(const Expr content, value(property, pointer + "/properties" + pointer_step(name), depth + 1));
      RIDGE_TRY_STATUS(add(name, content));
    }
    for (const std::string& name : required_names) {
      if (declared.contains(name)) continue;
      if (additional == false)
        return refuse(pointer, "required",
                      fmt::format("{} is no property, and others are not allowed", in_short(name)));
      RIDGE_TRY_STATUS(add(name, extra_value));
    }
    const bool may_be_empty = required_names.empty();

    // From the last to the first: what may follow when something stands before, and when nothing does.
    const Expr nothing = builder_.choice({});
    Expr following = builder_.empty(), leading = nothing;
    if (additional != false) {
      const Expr extra = json_.member(json_.string_other_than(std::move(names)), extra_value);
      following = builder_.repeat(builder_.sequence({json_.comma(), extra}), 0, kUnbounded);
      leading = builder_.sequence({extra, following});
    }
    for (auto property = list.rbegin(); property != list.rend(); ++property) {
      const Expr here = builder_.sequence({property->member, following});
      leading = property->required ? here : builder_.choice({here, leading});
      const Expr after = builder_.sequence({json_.comma(), here});
      following = property->required ? after : builder_.choice({after, following});
    }
    return rule_of("object", json_.bracketed("{", leading, may_be_empty, "}"));
  }

  Expr rule_of(const char* name, Expr body) {
    const uint32_t rule = builder_.new_rule(name);
    builder_.define(rule, body);
    return builder_.rule(rule);
  }

  /// A count that a keyword gives, or `otherwise`.
  static Result<uint32_t> count(const Json& schema, const char* keyword, uint32_t otherwise,
                                const std::string& pointer) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) return otherwise;
    const bool is_whole = found->is_number() && *found >= 0 && *found < 1000000000 &&
                          std::floor(found->get<double>()) == found->get<double>();
    if (!is_whole) return refuse(pointer, keyword, "is no whole number from 0 to 999999999");
    return uint32_t(found->get<double>());
  }

  Result<Expr> array(const Json& schema, const std::string& pointer, int depth) {
    RIDGE_TRY(const uint32_t min, count(schema, "minItems", 0, pointer));
    RIDGE_TRY(uint32_t max, count(schema, "maxItems", kUnbounded, pointer));
    const Json first = schema.value("prefixItems", Json::array()), items = schema.value("items", Json(true));
    if (!first.is_array()) return refuse(pointer, "prefixItems", "is no list of schemas");
    if (items.is_array()) return refuse(pointer, "items", "a list is not supported (prefixItems is)");
    if (items == false) max = std::min(max, uint32_t(first.size()));
    if (min > max) return refuse(pointer, "minItems", "more items are wanted than are allowed");
    RIDGE_TRY(const Expr item, value(items, pointer + "/items", depth + 1));
    const auto n_first = uint32_t(std::min<size_t>(first.size(), max));
    std::vector<Expr> firsts;
    for (uint32_t i = 0; i < n_first; ++i) {
      RIDGE_TRY(const Expr one, value(first[i], fmt::format("{}/prefixItems/{}", pointer, i), depth + 1));
      firsts.push_back(one);
    }
    if (n_first == 0 && max > 0) firsts.push_back(item);
    if (firsts.empty()) return builder_.literal("[]");
    const auto n = uint32_t(firsts.size());
    const auto left = [&](uint32_t bound) { return bound == kUnbounded ? bound : bound > n ? bound - n : 0; };
    Expr following = builder_.repeat(builder_.sequence({json_.comma(), item}), left(min), left(max));
    for (uint32_t i = n; i-- > 1;) {
      following = builder_.sequence({json_.comma(), firsts[i], following});
      if (i >= min) following = builder_.optional(following);
    }
    return rule_of("array", json_.bracketed("[", builder_.sequence({firsts[0], following}), min == 0, "]"));
  }

  Result<Expr> string(const Json& schema, const std::string& pointer) {
    RIDGE_TRY(const uint32_t min, count(schema, "minLength", 0, pointer));
    RIDGE_TRY(const uint32_t max, count(schema, "maxLength", kUnbounded, pointer));
    if (min > max) return refuse(pointer, "minLength", "is over maxLength");
    if (!schema.contains("pattern") && !schema.contains("format")) return json_.string(min, max);
    const char* keyword = schema.contains("pattern") ? "pattern" : "format";
    if (min > 0 || max != kUnbounded || (schema.contains("pattern") && schema.contains("format")))
      return refuse(pointer, keyword, "is not supported beside minLength, maxLength, pattern or format");
    if (!schema[keyword].is_string()) return refuse(pointer, keyword, "is no string");
    std::string pattern = schema[keyword];
    if (keyword == std::string_view("format")) {
      const auto format = kFormats.find(pattern);
      if (format == kFormats.end())
        return refuse(
            pointer, "format",
            fmt::format("{} is not supported (date, time, date-time, uuid, ipv4 and email are)", in_short(pattern)));
      pattern = format->second;
    }
    const auto contents = pattern_contents(pattern, builder_, json_);
    if (!contents) return refuse(pointer, keyword, contents.error().message);
    return json_.string_of(*contents);
  }

  Result<Expr> number(const Json& schema, bool is_integer, const std::string& pointer) {
    if (const auto multiple = schema.find("multipleOf"); multiple != schema.end() && !(is_integer && *multiple == 1))
      return refuse(pointer, "multipleOf", "is not supported (1 is, for integers)");
    Bounds bounds;
    for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      const auto found = schema.find(keyword);
      if (found == schema.end()) continue;
      const bool is_min = keyword == std::string_view("minimum") || keyword == std::string_view("exclusiveMinimum");
      const bool is_out = std::string_view(keyword).starts_with("exclusive");
      if (!found->is_number()) return refuse(pointer, keyword, "is no number");
      if (!(std::abs(found->get<double>()) <= double(kMaxBound)))
        return refuse(pointer, keyword, "is not supported over 10^18");
      const double real = found->get<double>();
      const bool is_whole = found->is_number_integer() || real == std::floor(real);
      int64_t bound =
          found->is_number_integer() ? found->get<int64_t>() : int64_t(is_min ? std::ceil(real) : std::floor(real));
      if (std::abs(bound) > kMaxBound) return refuse(pointer, keyword, "is not supported over 10^18");
      if (!is_integer && !is_whole)
        return refuse(pointer, keyword, "a number's bound with a fraction is not supported");
      if (!is_integer && is_out && std::abs(bound) >= 1000000000)
        return refuse(pointer, keyword, "is not supported for numbers from 10^9");
      if (is_integer && is_out && is_whole) bound += is_min ? 1 : -1;
      auto& place = is_min ? bounds.min : bounds.max;
      auto& out = is_min ? bounds.above_min : bounds.below_max;
      const bool is_tighter = !place || (is_min ? bound > *place : bound < *place);
      if (is_tighter || bound == *place) out = (out && !is_tighter) || (is_out && !is_integer);
      if (is_tighter) place = bound;
    }
    if (bounds.min && bounds.max && *bounds.min > *bounds.max) return refuse(pointer, "minimum", "is over the maximum");
    return is_integer ? json_.integer(bounds) : json_.number(bounds);
  }

  const Json& root_;
  Builder builder_;
  JsonText json_{builder_};
  std::map<const Json*, uint32_t> rules_;
  std::vector<Referred> referred_;
  size_t merged_ = 0;  // values of schemas that were joined
};

}  // namespace

Result<Grammar> grammar_of_schema(const Json& schema, std::string_view before, std::string_view after) {
  return SchemaCompiler(schema).compile(before, after);
}

Result<Grammar> any_json_object() {
  Builder builder;
  const Expr object = JsonText(builder).any_object();
  return std::move(builder).finish(object);
}

}  // namespace ridge::grammar
