// Server-sent events: written by servers, read by clients.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "http/message.h"

namespace ridge::http {

inline constexpr std::string_view kEventStream = "text/event-stream";

/// "data: ...\n\n"; every line of `data` becomes a data line. A `name` comes first, as "event: NAME\n".
std::string sse_event(std::string_view data, std::string_view name = {});
/// No caching, no buffering in proxies.
Headers sse_headers();

/// Takes a stream in pieces of any size and gives the data of every event.
class SseReader {
 public:
  /// False from `on_data` stops, and feed() returns false. Events beyond 16 MiB end with Error(failure).
  bool feed(std::string_view bytes, const std::function<bool(std::string_view data)>& on_data);

 private:
  bool line(const std::function<bool(std::string_view data)>& on_data);
  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false;
};

}  // namespace ridge::http
