// Fuzz target of the HTTP layer's parsers: requests, targets, addresses, keys and events. What any bytes give does not
// depend on how they were cut, and what is accepted keeps the promises of the headers.
#include <algorithm>

#include "http/auth.h"
#include "http/request_reader.h"
#include "http/sse.h"
#include "http/url.h"

namespace {

using namespace ridge;
using namespace ridge::http;

bool plain(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return uint8_t(c) < 0x20 || c == 0x7F; });
}

std::string encoded(std::string_view text) {
  std::string out;
  for (const char c : text) out += fmt::format("%{:02x}", uint8_t(c));
  return out;
}

void check_path(const std::string& path, const std::vector<std::pair<std::string, std::string>>& query) {
  RIDGE_CHECK(path.starts_with('/') && plain(path), "a path that is none: {}", path);
  RIDGE_CHECK((path + "/").find("/../") == path.npos && (path + "/").find("/./") == path.npos, "a path that climbs: {}",
              path);
  std::string target = "/" + encoded(std::string_view(path).substr(1)), separator = "?";
  for (const auto& [name, value] : query) {
    RIDGE_CHECK(plain(name) && plain(value), "a control character in the query");
    target += std::exchange(separator, "&") + encoded(name) + "=" + encoded(value);
  }
  const auto again = parse_target(target);
  RIDGE_CHECK(again && again->path == path && again->query == query, "{} changes when it is encoded and read", target);
}

void check_request(const Request& request, const Limits& limits) {
  check_path(request.path, request.query);
  RIDGE_CHECK(!request.method.empty() && request.body.size() <= limits.body_bytes, "method or body");
  RIDGE_CHECK(request.headers.count("Host") == 1 || (request.http10 && !request.headers.find("Host")), "not one host");
  for (const auto& [name, value] : request.headers.fields)
    for (const char c : name + value)
      RIDGE_CHECK((uint8_t(c) >= 0x20 || c == '\t') && c != 0x7F, "a control character in the field {}", name);
  static const Keys keys = Keys::parse("alpha\nbeta", "fuzz").or_throw();
  if (const auto found = keys.find(request.headers)) {
    const std::string_view shown =
        request.headers.find("Authorization") ? request.headers.get("Authorization") : request.headers.get("X-Api-Key");
    RIDGE_CHECK(shown.ends_with(*found == 0 ? "alpha" : "beta"), "a key that nobody showed");
  }
}

/// What a reader makes of the bytes in pieces of `cut`, as text.
std::string read(std::string_view bytes, size_t cut, const Limits& limits) {
  RequestReader reader(limits);
  std::string log;
  for (size_t at = 0; at < bytes.size(); at += cut) {
    reader.feed(bytes.substr(at, cut));
    for (auto step = reader.step(); step != RequestReader::Step::more; step = reader.step()) {
      if (step == RequestReader::Step::refused) {
        RIDGE_CHECK(reader.status() >= 400 && plain(reader.why()) && !reader.why().empty(), "refused without a reason");
        return log + fmt::format("refused {} {}", reader.status(), reader.why());
      }
      if (step == RequestReader::Step::head) {
        log += fmt::format("head {} {}{}\n", reader.head().path, reader.keep_alive(), reader.has_body());
        continue;
      }
      const Request request = reader.take();
      check_request(request, limits);
      log += fmt::format("{} {} {}\n", request.method, request.path, request.body);
      for (const auto& [name, value] : request.headers.fields) log += fmt::format("{}: {}\n", name, value);
    }
    RIDGE_CHECK(reader.buffered() <= limits.header_bytes + cut, "{} bytes are kept unread", reader.buffered());
  }
  return log;
}

void check_target_and_url(std::string_view text) {
  const auto target = parse_target(text);
  if (target) check_path(target->path, target->query);
  else RIDGE_CHECK(!target.error().message.empty(), "refused without a reason");
  for (const bool plus : {false, true})
    if (const auto decoded = percent_decoded(text, plus))
      RIDGE_CHECK(percent_decoded(encoded(*decoded), plus) == decoded, "text changes when it is encoded and decoded");
  const auto url = parse_url(text);
  if (url)
    RIDGE_CHECK(!url->host.empty() && url->target.starts_with('/') && plain(url->target), "an address that is none");
  else RIDGE_CHECK(!url.error().message.empty(), "refused without a reason");
}

void check_keys(std::string_view text) {
  const auto keys = Keys::parse(text, "fuzz");
  if (!keys) return;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool is_key = !line.empty() && line[0] != '#';
    RIDGE_CHECK(keys->find(line).has_value() == is_key, "a key is not found, or a comment is");
  }
}

std::string events(std::string_view bytes, size_t cut) {
  SseReader reader;
  std::string all;
  for (size_t at = 0; at < bytes.size(); at += cut)
    reader.feed(bytes.substr(at, cut), [&](std::string_view data) { return all.append(data).append("|"), true; });
  return all;
}

void check_events(std::string_view bytes) {
  RIDGE_CHECK(events(bytes, 1) == events(bytes, bytes.size()), "events depend on the cut");
  const std::string once = events(sse_event(bytes), 3);
  RIDGE_CHECK(std::count(once.begin(), once.end(), '|') == 1 + std::count(bytes.begin(), bytes.end(), '|'),
              "one event becomes several");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Limits limits;
  limits.header_bytes = 200, limits.body_bytes = 40;  // within reach of short inputs
  const std::string whole = read(bytes, std::max<size_t>(size, 1), limits);
  for (const size_t cut : {1, 7, 64})
    RIDGE_CHECK(read(bytes, cut, limits) == whole, "in pieces of {} bytes the same requests differ", cut);
  check_target_and_url(bytes);
  check_keys(bytes);
  if (size > 0) check_events(bytes);
  return 0;
}
