// Bytes of a connection in, requests out: no sockets, no clock. The results do not depend on how the bytes were cut.
#pragma once

#include <memory>

#include "http/server.h"

namespace ridge::http {

class RequestReader {
 public:
  enum class Step {
    more,     ///< needs bytes
    head,     ///< once a request: its head is read, head() has all but the body
    whole,    ///< take() gives the request; until then no other is read
    refused,  ///< for good: close the connection after saying status() and why()
  };

  explicit RequestReader(const Limits& limits);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  void feed(std::string_view bytes) { bytes_.append(bytes); }
  Step step();
  Request take();

  const Request& head() const { return request_; }
  size_t body_bytes() const;      ///< of the request being read, so far
  bool has_body() const;          ///< announced by the head
  bool keep_alive() const;        ///< not "Connection: close"
  bool expects_continue() const;  ///< and no byte of the body is here
  size_t buffered() const { return bytes_.size(); }
  /// A request has begun and is not whole.
  bool under_way() const { return parser_ || !bytes_.empty(); }

  int status() const { return status_; }
  const std::string& why() const { return why_; }

 private:
  struct Parser;
  Step refuse(int status, std::string why);
  Step read_head();
  Step check_head();
  Step read_body();

  const Limits& limits_;
  std::string bytes_;
  Request request_;
  std::unique_ptr<Parser> parser_;  // after the head; idle connections have none
  bool line_checked_ = false;
  size_t scanned_ = 0;
  int status_ = 0;
  std::string why_;
};

}  // namespace ridge::http
