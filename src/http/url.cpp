#include "http/url.h"

#include <algorithm>
#include <charconv>

namespace ridge::http {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = uint8_t(text[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xC2 && lead < 0xE0 ? 2
                          : lead >= 0xE0 && lead < 0xF0 ? 3
                          : lead >= 0xF0 && lead < 0xF5 ? 4
                                                        : 0;
    if (length == 0 || text.size() - i < length) return false;
    for (size_t k = 1; k < length; ++k)
      if ((uint8_t(text[i + k]) & 0xC0) != 0x80) return false;
    if (length >= 3) {  // too long a form, surrogates, beyond U+10FFFF
      const auto second = uint8_t(text[i + 1]);
      if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return false;
      if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return false;
    }
    i += length;
  }
  return true;
}

/// A segment "." or ".." between slashes of either kind.
bool climbs(std::string_view path) {
  size_t begin = 0;
  for (size_t i = 0; i <= path.size(); ++i) {
    if (i < path.size() && path[i] != '/' && path[i] != '\\') continue;
    const std::string_view segment = path.substr(begin, i - begin);
    if (segment == "." || segment == "..") return true;
    begin = i + 1;
  }
  return false;
}

std::optional<uint16_t> port_of(std::string_view text) {
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return port;
}

}  // namespace

std::optional<std::string> percent_decoded(std::string_view text, bool plus) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (text.size() - i < 3 || hex_digit(text[i + 1]) < 0 || hex_digit(text[i + 2]) < 0) return {};
      c = char(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    } else if (c == '+' && plus) {
      c = ' ';
    }
    if (uint8_t(c) < 0x20 || c == 0x7F) return {};
    out += c;
  }
  if (!is_utf8(out)) return {};
  return out;
}

Result<Target> parse_target(std::string_view target) {
  if (target.empty() || target[0] != '/') return bad_file("the target must be a path that starts with '/'");
  if (target.find('#') != target.npos) return bad_file("the target has a fragment");
  const size_t mark = target.find('?');
  auto path = percent_decoded(target.substr(0, mark), false);
  if (!path) return bad_file("the path has a bad escape, a control character, or is not UTF-8");
  if (climbs(*path)) return bad_file("the path has a segment '.' or '..'");
  Target result{std::move(*path), {}};
  std::string_view rest = mark == target.npos ? std::string_view() : target.substr(mark + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.find('='), pair.size());
    auto name = percent_decoded(pair.substr(0, equals), true);
    auto value = percent_decoded(pair.substr(std::min(equals + 1, pair.size())), true);
    if (!name || !value) return bad_file("the query has a bad escape, a control character, or is not UTF-8");
    result.query.emplace_back(std::move(*name), std::move(*value));
  }
  return result;
}

std::string_view host_name(std::string_view host_field) {
  size_t end = std::min(host_field.find(':'), host_field.size());
  if (!host_field.empty() && host_field[0] == '[') {
    end = host_field.find(']');
    if (end == host_field.npos || end == 1) return {};
    ++end;
  }
  if (end < host_field.size() && (host_field[end] != ':' || !port_of(host_field.substr(end + 1)))) return {};
  return host_field.substr(0, end);
}

Result<Url> parse_url(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return fail(ErrorKind::usage, "{}", four_parts("no such address", text, why, "write http://HOST:PORT"));
  };
  std::string_view rest = text;
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  if (rest.find("://") != rest.npos) return wrong("only http:// is spoken");
  for (const char c : rest)
    if (uint8_t(c) <= 0x20 || c == 0x7F) return wrong("it has a blank or a control character");
  const size_t slash = std::min(rest.find_first_of("/?"), rest.size());
  const std::string_view place = rest.substr(0, slash);
  std::string_view host = host_name(place);
  if (host.empty() || place.find('@') != place.npos) return wrong("there is no host, or a bad port");
  Url url;
  if (host.size() < place.size()) url.port = *port_of(place.substr(host.size() + 1));
  if (host[0] == '[') host = host.substr(1, host.size() - 2);
  url.host = host;
  if (slash < rest.size() && rest[slash] == '/') url.target = rest.substr(slash);
  else url.target += rest.substr(slash);
  return url;
}

}  // namespace ridge::http
