// Addresses: targets of requests, decoded and checked, and the hosts and origins that may ask.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ridge::http {

struct Target {
  std::string path;
  std::vector<std::pair<std::string, std::string>> query;
};
/// "/path?name=value&...", decoded once. Refuses what Request::path promises not to hold, escapes that are none, text
/// that is not UTF-8, and fragments.
Result<Target> parse_target(std::string_view target);

/// "%41" as "A"; `plus` reads '+' as a space. None for a bad escape, a control character, or text that is not UTF-8.
std::optional<std::string> percent_decoded(std::string_view text, bool plus);

/// "[::1]:80" as "[::1]", "localhost:8080" as "localhost"; "" for what is no host, or no port after it.
std::string_view host_name(std::string_view host_field);

struct Url {
  std::string host;  ///< without brackets
  uint16_t port = 80;
  std::string target = "/";
};
/// "http://host[:port][/path]" or "host[:port][/path]"; anything else is a usage failure.
Result<Url> parse_url(std::string_view text);

}  // namespace ridge::http
