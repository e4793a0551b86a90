// A small blocking HTTP/1.1 client, plain http only: for the program's own tools and for tests. One connection a
// request.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "base/result.h"
#include "http/message.h"
#include "http/url.h"

namespace ridge::http {

class Client {
 public:
  struct Times {
    std::chrono::milliseconds connect{5'000};
    std::chrono::milliseconds idle{60'000};  ///< without a byte from the server
    /// Waits for the server end within 50 ms of this being set, as a failure; null: never. Name look-ups go on.
    const std::atomic<bool>* stop = nullptr;
  };
  static constexpr size_t kMaxBody = size_t(64) << 20;

  Client(std::string host, uint16_t port) : Client(std::move(host), port, Times()) {}
  Client(std::string host, uint16_t port, Times times) : host_(std::move(host)), port_(port), times_(times) {}

  /// A complete answer of any status. Fails when there is none: no connection, time over, not HTTP, body beyond
  /// kMaxBody.
  Result<Response> get(std::string_view target, const Headers& headers = {}) const;
  Result<Response> post(std::string_view target, std::string_view body, const Headers& headers = {}) const;
  Result<Response> request(std::string_view method, std::string_view target, std::string_view body,
                           const Headers& headers) const;
  /// `method` with `body`. While the status is 200, events go to `on_data` as they come and the body returned is empty;
  /// false from it closes the connection, and the answer so far is returned.
  Result<Response> events(std::string_view method, std::string_view target, std::string_view body,
                          const Headers& headers, const std::function<bool(std::string_view data)>& on_data) const;
  /// Sends as events() does, but hands on pieces of the body, uncoded.
  Result<Response> pieces(std::string_view method, std::string_view target, std::string_view body,
                          const Headers& headers, const std::function<bool(std::string_view bytes)>& on_bytes) const;

 private:
  std::string host_;
  uint16_t port_;
  Times times_;
};

}  // namespace ridge::http
