#include "http/message.h"

#include <algorithm>

namespace ridge::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c + ('a' - 'A')) : c; }

}  // namespace

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

const std::string* Headers::find(std::string_view name) const {
  for (const auto& [field, value] : fields)
    if (same_name(field, name)) return &value;
  return nullptr;
}

std::string_view Headers::get(std::string_view name) const {
  const std::string* value = find(name);
  return value ? std::string_view(*value) : std::string_view();
}

size_t Headers::count(std::string_view name) const {
  return size_t(
      std::count_if(fields.begin(), fields.end(), [&](const auto& field) { return same_name(field.first, name); }));
}

const std::string* Request::param(std::string_view name) const {
  for (const auto& [key, value] : query)
    if (key == name) return &value;
  return nullptr;
}

}  // namespace ridge::http
