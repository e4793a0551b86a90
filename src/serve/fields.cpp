#include "serve/fields.h"

#include <fmt/format.h>
#include <cstdint>

#include <span>

namespace ridge::serve {
namespace {}  // namespace

std::string shown(const Json& value) {
  if (value.is_structured() && !value.empty()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= 80) return text;
  size_t end = 77;
  while (end > 0 && (uint8_t(text[end]) & 0xC0) == 0x80) --end;  // whole characters
  return text.substr(0, end) + "...";
}

Json ApiError::json() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"error", {{"message", message}, {"type", type}, {"param", or_null(param)}, {"code", or_null(code)}}}};
}

http::Response ApiError::response() const {
  http::Response response{.status = status, .body = json().dump(-1, ' ', false, Json::error_handler_t::replace)};
  if (status == 429 || status == 503) response.headers.add("Retry-After", "1");
  return response;
}

void refuse(const std::string& param, const std::string& why) {
  throw ApiError{.message = param + ": " + why, .param = param};
}

Json parse_body(std::string_view body) {
  Result<Json> json = parse_within<Json>(body);
  if (!json) {
    const bool is_limit = json.error().kind == ErrorKind::usage;
    throw ApiError{.message = (is_limit ? "the body is " : "the body is not JSON: ") + json.error().message};
  }
  if (!json->is_object()) throw ApiError{.message = "the body is not a JSON object"};
  return std::move(*json);
}

std::optional<double> Fields::number(const std::string& name, double least, double most) const {
  const Json* value = find(name);
  if (!value) return {};
  if (!value->is_number()) refuse(place_ + name, fmt::format("{} is not a number", shown(*value)));
  const double number = value->get<double>();
  if (!(number >= least && number <= most))
    refuse(place_ + name, fmt::format("{} is out of range ({} to {})", shown(*value), least, most));
  return number;
}

std::optional<int64_t> Fields::whole(const std::string& name, int64_t least, int64_t most) const {
  const Json* value = find(name);
  if (!value) return {};
  // 5.0 is whole too: some clients have no other numbers.
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(std::floor(number) == number)) refuse(place_ + name, fmt::format("{} is not a whole number", shown(*value)));
  if (!(number >= double(least) && number <= double(most) && number < 0x1p63))
    refuse(place_ + name, fmt::format("{} is out of range ({} to {})", shown(*value), least, most));
  return value->is_number_integer() ? value->get<int64_t>() : int64_t(number);
}

std::optional<bool> Fields::flag(const std::string& name) const {
  const Json* value = find(name);
  if (!value) return {};
  if (!value->is_boolean()) refuse(place_ + name, fmt::format("{} is neither true nor false", shown(*value)));
  return value->get<bool>();
}

std::optional<std::string> Fields::text(const std::string& name) const {
  const Json* value = find(name);
  if (!value) return {};
  if (!value->is_string()) refuse(place_ + name, fmt::format("{} is not a text", shown(*value)));
  return value->get<std::string>();
}

std::vector<std::string> Fields::texts(const std::string& name, size_t most) const {
  const Json* value = find(name);
  if (!value || *value == "") return {};
  const std::span<const Json> list =
      value->is_array() ? std::span<const Json>(value->get_ref<const Json::array_t&>()) : std::span(value, 1);
  if (list.size() > most) refuse(place_ + name, fmt::format("{} texts, at most {} are taken", list.size(), most));
  std::vector<std::string> texts;
  for (const Json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty())
      refuse(place_ + name, fmt::format("{} is not a text of one character or more", shown(text)));
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

}  // namespace ridge::serve
