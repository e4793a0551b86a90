// Reading a request's JSON: every field is checked once, and what is wrong says which field and why.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "base/json.h"
#include "http/message.h"

namespace ridge::serve {

using Json = OrderedJson;

/// An answer that refuses a request, in OpenAI's form.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param = {};  ///< the field that is wrong
  std::string code = {};

  Json json() const;
  http::Response response() const;
};

[[noreturn]] void refuse(const std::string& param, const std::string& why);

/// A value as messages show it, on one short line.
std::string shown(const Json& value);

/// Parses a body: an object within the limits of base/json.h. Throws ApiError.
Json parse_body(std::string_view body);

/// Fields of one object by name; a null counts as absent. All throw ApiError naming the field.
class Fields {
 public:
  /// `place`: of the object in the body, with a point behind it ("stream_options.").
  explicit Fields(const Json& object, std::string place = {}) : object_(object), place_(std::move(place)) {}

  const Json* find(const std::string& name) const {
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  std::optional<double> number(const std::string& name, double least, double most) const;
  std::optional<int64_t> whole(const std::string& name, int64_t least, int64_t most) const;
  std::optional<bool> flag(const std::string& name) const;
  std::optional<std::string> text(const std::string& name) const;
  /// A text or a list of at most `most` texts, none of them empty; an empty text alone is none.
  std::vector<std::string> texts(const std::string& name, size_t most) const;

 private:
  const Json& object_;
  const std::string place_;
};

}  // namespace ridge::serve
