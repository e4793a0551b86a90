// Bearer keys: which key a request shows, without telling by time how much of a guess was right.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "http/message.h"

namespace ridge::http {

class Keys {
 public:
  Keys() = default;
  /// One key a line; blank lines and lines that start with '#' count as nothing. A key has 1 to 512 visible ASCII
  /// characters. Messages name lines, never keys.
  static Result<Keys> parse(std::string_view text, std::string_view where);

  bool empty() const { return keys_.empty(); }
  size_t size() const { return keys_.size(); }

  /// Index of the key that was shown, or none. Compares with every key, whole.
  std::optional<size_t> find(std::string_view shown) const;
  /// Number of the key in "Authorization: Bearer KEY", or else in "X-Api-Key: KEY".
  std::optional<size_t> find(const Headers& headers) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace ridge::http
