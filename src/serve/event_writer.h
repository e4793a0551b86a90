// A stream of events to one client that may read slowly: what it does not take yet waits here, up to a limit.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "http/server.h"
#include "http/sse.h"

namespace ridge::serve {

class EventWriter : public std::enable_shared_from_this<EventWriter> {
 public:
  explicit EventWriter(std::shared_ptr<http::Stream> stream) : stream_(std::move(stream)) {}

  /// Sends or keeps an event, with a name where there is one. False when the client is gone, or so far behind that it
  /// counts as gone.
  bool push(std::string_view data, std::string_view name = {});
  /// No event follows; the stream ends when the client has taken the rest.
  void finish();

 private:
  static constexpr size_t kMaxBacklog = size_t(4) << 20;
  bool flush();  // with the lock held

  std::recursive_mutex mutex_;  // a stream may call back from inside of on_ready()
  const std::shared_ptr<http::Stream> stream_;
  std::string backlog_;
  bool waits_ = false, finished_ = false;
};

}  // namespace ridge::serve
